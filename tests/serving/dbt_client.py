"""dbt as a client of a server: a project whose one macro runs statements, for `dbt run-operation`."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from dbt.cli.main import dbtRunner
from dbt_common.events.base_types import EventMsg

from tests.serving.clients import Serving
from tests.serving.ldap import PASSWORD, USER

_MARK = "--8<-- "
_PROJECT = """
name: statements
profile: server
query-comment: {append: true}  # so that places in errors are the statement's own
flags: {send_anonymous_usage_stats: false}
"""
_MACRO = """
{% macro run_all(texts) %}
  {% for text in texts %}
    {% call statement('answer', fetch_result=true, auto_begin=false) %}{{ text }}{% endcall %}
    {% set rows = [] %}
    {% for found in load_result('answer')['data'] %}
      {% set values = [] %}
      {% for value in found %}{% do values.append('NULL' if value is none else value | string) %}{% endfor %}
      {% do rows.append(values | join(' | ')) %}
    {% endfor %}
    {{ log('MARK' ~ tojson(rows), info=true) }}
  {% endfor %}
{% endmacro %}
""".replace("MARK", _MARK)


def by_dbt(server: Serving, database: str, texts: Sequence[str]) -> list[str]:
    """What each statement answers. An error ends dbt's operation, so another one goes on behind it."""
    folder = _project(server, database)
    answers: list[str] = []
    while len(answers) < len(texts):
        answers += _operation(folder, [f"USE {database}", *texts[len(answers) :]])[1:]
    return answers


def _project(server: Serving, database: str) -> Path:
    folder = server.folder / "dbt_client"
    (folder / "macros").mkdir(parents=True)
    (folder / "dbt_project.yml").write_text(_PROJECT)
    (folder / "macros" / "run_all.sql").write_text(_MACRO)
    output = {
        "type": "spark",
        "method": "thrift",
        "host": "127.0.0.1",
        "port": server.thrift_port,
        "auth": "LDAP",
        "user": USER,
        "password": PASSWORD,
        "schema": database,
        "poll_interval": 1,
    }
    (folder / "profiles.yml").write_text(json.dumps({"server": {"target": "server", "outputs": {"server": output}}}))
    return folder


def _operation(folder: Path, texts: Sequence[str]) -> list[str]:
    """The answers up to the first error, which is the last of them."""
    answers: list[str] = []

    def hear(event: EventMsg) -> None:
        if event.info.name in ("RunningOperationCaughtError", "RunningOperationUncaughtError"):
            answers.append(f"ERROR {_message(event.data.exc)}")
        elif event.info.name == "JinjaLogInfo" and event.data.msg.startswith(_MARK):
            answers.append("\n".join(json.loads(event.data.msg.removeprefix(_MARK))))

    where = ["--project-dir", str(folder), "--profiles-dir", str(folder)]
    ended = dbtRunner(callbacks=[hear]).invoke(["run-operation", "run_all", "--args", json.dumps({"texts": list(texts)}), *where])
    assert ended.exception is None, ended.exception
    assert len(answers) > 1, f"nothing was run: {answers}"
    return answers


def _message(told: str) -> str:
    """What the server said, without dbt's headings and its stack of macros."""
    lines = [line for line in told.splitlines() if not re.match(r"\s*> (?:in|called by) macro ", line)]
    while re.fullmatch(r"\s*\w+ Error(?: in .*)?", lines[0]):
        lines = lines[1:]
    return textwrap.dedent("\n".join(lines)).strip()
