"""One server keeps sqlext's flows and runs Spark's declarative pipelines, whose statements are the same words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.serving.clients import DEADLINE, ROOT, Serving, by_connect, serving_ldap_users

pytestmark = pytest.mark.timeout(3 * DEADLINE)

PIPELINE = """
CREATE STREAMING TABLE copied AS SELECT item, amount FROM STREAM sales;
CREATE STREAMING TABLE fed (item STRING, amount INT);
CREATE FLOW feeding AS INSERT INTO fed BY NAME SELECT item, 2 * amount AS amount FROM STREAM sales;
CREATE MATERIALIZED VIEW totals AS SELECT item, sum(amount) AS total FROM copied GROUP BY item;
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving_ldap_users(tmp_path_factory.mktemp("pipelines"), {"spark.sql.sources.default": "delta"}) as found:
        yield found


def run_pipeline(server: Serving, text: str) -> str:
    """The events of a run of a pipeline."""
    file = server.folder / "pipeline.sql"
    file.write_text(text)
    client = [sys.executable, "-m", "tests.serving.pipeline_client", f"sc://127.0.0.1:{server.connect_port}", str(file)]
    ended = subprocess.run(
        [*client, (server.folder / "storage").as_uri()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    return ended.stdout


def test_a_pipeline_and_flows_live_in_one_server(server: Serving) -> None:
    made = ["CREATE TABLE sales (item STRING, amount INT) USING delta", "INSERT INTO sales VALUES ('tea', 2), ('tea', 3)"]
    flow = "CREATE STREAMING TABLE ours AS SELECT item, count(*) AS n FROM STREAM sales GROUP BY item"
    answers = by_connect(server, "default", [*made, flow, "WAIT FLOW ours"])
    assert not any(text.startswith("ERROR") for text in answers), answers

    events = run_pipeline(server, PIPELINE)
    assert "COMPLETED" in events, events

    queries = [
        "SELECT sum(amount) FROM copied",
        "SELECT sum(amount) FROM fed",
        "SELECT item, total FROM totals",
        "SELECT n FROM ours",
    ]
    assert by_connect(server, "default", queries) == ["5", "10", "tea | 5", "2"]
    (flows,) = by_connect(server, "default", ["SHOW FLOWS"])
    assert flows.count("RUNNING") == 1, "the pipeline's are none of sqlext's"
    assert "ours" in flows
