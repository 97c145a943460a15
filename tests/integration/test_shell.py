"""`sqlext shell` at a real terminal, as people use it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.java import java_options
from tests.support import commits
from tests.terminal import Terminal

DEADLINE = 300.0
ENTER, CTRL_C, CTRL_D, TAB = "\r", "\x03", "\x04", "\t"
PROMPT = r"sqlext \(default\)>"
FLOW = """CREATE TABLE readings (sensor STRING, celsius INT) USING delta;
INSERT INTO readings VALUES ('roof', 20), ('roof', 22), ('cellar', 11);
CREATE STREAMING TABLE hottest TBLPROPERTIES ('execution.flush.max-interval' = '1 hour')
AS SELECT sensor, max(celsius) AS celsius
FROM STREAM readings GROUP BY sensor;
"""

pytestmark = pytest.mark.timeout(3 * DEADLINE)


def test_an_hour_at_the_prompt(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    command = [sys.executable, "-m", "sqlext.cli", "shell", "--warehouse", str(warehouse)]
    command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}"]
    with Terminal(command, {"XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1"}) as terminal:
        terminal.expect(PROMPT, DEADLINE)

        def say(keys: str, answer: str) -> None:
            terminal.type(keys)
            terminal.expect(f"(?s){answer}.*{PROMPT}", DEADLINE)

        say(
            FLOW.strip().replace("\n", ENTER) + ENTER,
            r"flow hottest \(\w+\) started into spark_catalog\.default\.hottest\n\d+\.\d\d s\n",
        )
        say("SHOW FLOW;" + ENTER, r"Did you mean `SHOW FLOWS`\?\n  1 \| SHOW FLOW;\n")
        say("SELECT fahrenheit FROM hotest;" + ENTER, r"cannot be found\. Did you mean `hottest`\?")

        terminal.type("SHOW FLOWS \\watch 0.5" + ENTER)
        terminal.expect(r"every 0\.5 s[^╰]*│ rows_in +│ 3 ", DEADLINE)
        say(CTRL_C, "")

        terminal.type("SELECT java_method('java.lang.Thread', 'sleep', 600000L) FROM range(2);" + ENTER)
        terminal.expect(r"Ctrl-C cancels, \d+ s, 0 of 2 tasks", DEADLINE)
        say(CTRL_C, r"The statement was canceled\.\n")

        terminal.type("DESCRIBE FLOW ho" + TAB)
        terminal.expect("ttest", DEADLINE)
        say(";" + ENTER, r"output_mode\s.*\d+ rows, ")

        terminal.type(CTRL_D)
        assert terminal.end(DEADLINE) == 0, terminal.text
    assert "the next run on this warehouse resumes the flows" in terminal.text
    assert "Traceback" not in terminal.text
    (flush,) = commits(warehouse / "hottest")
    assert flush["reason"] == "stop"
    assert flush["rows"] in (2, 3)  # partial results: a group in two files may have two
    files = [parquet.ParquetFile(file).read().to_pylist() for file in (warehouse / "hottest").glob("*.parquet")]
    assert sorted((row["sensor"], row["celsius"]) for rows in files for row in rows) == [("cellar", 11), ("roof", 22)]
    history = tmp_path / "state" / "sqlext" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "DESCRIBE FLOW hottest;" in history.read_text()
