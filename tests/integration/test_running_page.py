"""The operator's page: its commands, run in their order by a shell in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sqlext import docs
from tests.support import free_port

_DEADLINE = 600.0
_MARK = "--8--"


@pytest.mark.slow
@pytest.mark.timeout(_DEADLINE + 60)
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", docs.page("running").text, re.MULTILINE | re.DOTALL)
    end = "trap 'kill -9 $(cat host.pid) 2> /dev/null || true' EXIT\n"  # where a command fails in between
    script = end + "".join(f"echo {_MARK}\n{block}" for block in blocks)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    variables = {**os.environ, "PATH": path, "PORT": str(free_port()), "PAGE": str(free_port())}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=_DEADLINE
    )
    host = tmp_path / "host.log"
    assert ended.returncode == 0, ended.stdout + ended.stderr + (host.read_text() if host.exists() else "")
    said = ended.stdout.split(f"{_MARK}\n")[1:]
    assert len(said) == len(blocks)
    by_block: dict[str, str] = dict(zip(blocks, said, strict=True))

    def of(command: str) -> str:
        (found,) = [text for block, text in by_block.items() if command in block]
        return found

    assert re.search(r"ann\W+3\b", of("cat > flows.sql")), of("cat > flows.sql")
    assert 'flow="spark_catalog.default.spent"' in of("/metrics")
    assert "RUNNING" in of("SHOW FLOWS")
    assert re.search(r"ann\W+6\b", of("--until-idle")), of("--until-idle")
    assert "spent" in (tmp_path / "spent.html").read_text(encoding="utf-8")
