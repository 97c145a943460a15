"""`sqlext run` as users start it: processes of their own, from the outside."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from sqlext.cli import cli
from tests.java import java_options
from tests.support import eventually

EXAMPLES = sorted((Path(__file__).parents[2] / "sql_examples").glob("*.sql"))
DEADLINE = 900.0

pytestmark = pytest.mark.timeout(2 * DEADLINE)


def command(*arguments: str | Path) -> list[str]:
    quick_start = f"spark.driver.extraJavaOptions={java_options()}"
    return [sys.executable, "-m", "sqlext.cli", "run", *map(str, arguments), "--conf", quick_start]


def run(*arguments: str | Path, expect: int = 0) -> str:
    """What `sqlext run` prints, to either output; its exit code must be the expected one."""
    ended = subprocess.run(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=DEADLINE,
    )
    assert ended.returncode == expect, ended.stdout
    assert_only_for_people(ended.stdout)
    return ended.stdout


def assert_only_for_people(output: str) -> None:
    noise = re.search(
        r"Traceback|WARN|Exception|^\s+at [\w.]+\(|== SQL|JVM|log4j|SQLSTATE|\[Stage|incubator", output, re.MULTILINE
    )
    assert noise is None, f"{noise.group()!r} in:\n{output}"


def answers(output: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Each SELECT's file and rows, in order; columns are set apart by two blanks."""
    pieces = re.split(r"^(\S+\.sql):\d+  (.*)$", output, flags=re.MULTILINE)
    for file, statement, answer in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        lines = answer.strip().splitlines()
        if statement.startswith("SELECT") and len(lines) > 1 and set(lines[1]) <= {"-", " "}:
            width = len(lines[1].split())
            found = [re.split(r"\s{2,}", line.strip()) for line in lines[2:]]
            yield Path(file).name, [row for row in found if len(row) == width]


def last_answers(output: str) -> dict[str, list[list[str]]]:
    return dict(answers(output))


# The examples. Expected rows are worked out by hand from what each file inserts.

EXPECTED = {
    "append_only.sql": [
        ["2024-05-01 09:00:01", "/search", "500", "2.3", "discovery"],
        ["2024-05-01 09:00:02", "/cart", "503", "0.04", "checkout"],
        ["2024-05-01 09:01:00", "/cart", "500", "0.015", "checkout"],
    ],
    "backlog.sql": [["Ada", "2", "15.50"], ["Bob", "2", "21.00"], ["Cleo", "1", "7.25"], ["Dan", "1", "2.00"]],
    "bounded_then_stream.sql": [["ann", "1", "1"], ["bob", "2", "1"], ["dan", "1", "0"]],
    "changes.sql": [
        ["1", "Ann", "Rome", "1", "3"],
        ["1", "Anna", "Rome", "3", "5"],
        ["1", "Ann", "Bern", "5", "NULL"],
        ["2", "Bo", "Oslo", "2", "4"],
        ["2", "Bo", "Lima", "4", "7"],
    ],
    "changed_query.sql": [["rome", "72.0"], ["oslo", "8.5"], ["bern", "4.0"]],
    "constraints.sql": [["1", "10.00"], ["2", "12.50"], ["3", "8.00"]],
    "distinct_visitors.sql": [["blog", "1", "1", "1"], ["docs", "4", "2", "2"], ["home", "3", "2", "2"]],
    "end_of_stream.sql": [
        ["ann", "3", "2", "11.80"],
        ["bob", "1", "1", "7.90"],
        ["cem", "1", "1", "4.20"],
        ["everybody", "5", "3", "23.90"],
    ],
    "files.sql": [
        ["1", "pen", "3", "NULL", "1"],
        ["2", "ink", "1", "NULL", "1"],
        ["3", "cup", "NULL", '{"amount":"two","gift":true}', "2"],
        ["4", "mug", "NULL", '{"gift":false}', "2"],
    ],
    "having.sql": [["cocoa", "12", "3"], ["coffee", "7", "2"], ["tea", "15", "2"]],
    "hybrid.sql": [["attic", "1", "31.0"], ["cellar", "2", "12.5"], ["roof", "2", "22.0"]],
    "insert_into.sql": [["east", "12.00", "1"], ["north", "24.25", "2"], ["south", "16.00", "2"], ["west", "99.90", "1"]],
    "materialized_view.sql": [["south", "1", "40.00"], ["west", "2", "35.00"]],
    "most_viewed_page.sql": [["blog", "4"]],
    "operations.sql": [["3"]],
    "page_views.sql": [["blog", "4", "45.0", "90.0"], ["home", "3", "5.5", "12.0"], ["docs", "2", "150.8", "240.0"]],
    "partitions.sql": [
        ["cocoa", "2024-05-02", "3.10", "3.10"],
        ["coffee", "2024-05-04", "8.25", "7.90"],
        ["tea", "2024-05-03", "4.50", "4.20"],
    ],
    "new_columns.sql": [
        ["1", "Rome", "NULL", "NULL"],
        ["2", "Oslo", "NULL", "NULL"],
        ["3", "Bern", "3011", "2.5"],
        ["4", "Lyon", "NULL", "NULL"],
    ],
    "state_ttl.sql": [["ann", "2", "2", "5.50"], ["bob", "1", "1", "2.50"]],
    "savepoints.sql": [["ink", "2", "6"], ["pen", "2", "5"]],
    "several_flows.sql": [
        ["past", "1", "start"],
        ["past", "2", "tap"],
        ["app", "10", "start"],
        ["app", "11", "tap"],
        ["web", "20", "open"],
        ["web", "21", "click"],
    ],
    "windows.sql": [
        ["2024-05-01 12:00:00", "2024-05-01 12:10:00", "docs", "1"],
        ["2024-05-01 12:00:00", "2024-05-01 12:10:00", "home", "2"],
        ["2024-05-01 12:10:00", "2024-05-01 12:20:00", "home", "1"],
        ["2024-05-01 12:30:00", "2024-05-01 12:40:00", "home", "1"],
        ["2024-05-01 12:40:00", "2024-05-01 12:50:00", "docs", "1"],
    ],
}


@pytest.mark.slow
def test_examples_run_and_run_again(tmp_path: Path) -> None:
    assert {path.name for path in EXAMPLES} == set(EXPECTED)
    warehouse = tmp_path / "a warehouse"
    output = run(*EXAMPLES, "--until-idle", "--warehouse", warehouse)
    assert last_answers(output) == EXPECTED
    again = run(
        *(path for path in EXAMPLES if path.name in ("having.sql", "append_only.sql")), "--until-idle", "--warehouse", warehouse
    )
    assert "resumed flows: " in again
    assert last_answers(again) == {name: EXPECTED[name] for name in ("having.sql", "append_only.sql")}


# The life of a flow over several processes.

FLOW = """
CREATE TABLE readings (sensor STRING, celsius INT) USING delta;
INSERT INTO readings VALUES ('roof', 20), ('roof', 22), ('cellar', 11);

CREATE STREAMING TABLE hottest TBLPROPERTIES ('execution.flush.max-interval' = '1 hour')
AS SELECT sensor, max(if(celsius < -273, raise_error('colder than cold'), celsius)) AS celsius
FROM STREAM readings GROUP BY sensor;
"""
GO_ON = """
SELECT * FROM hottest ORDER BY sensor;
INSERT INTO readings VALUES ('attic', 31), ('cellar', 12);
WAIT FLOW hottest;
SELECT * FROM hottest ORDER BY sensor;
SELECT sensor,
       fahrenheit FROM hottest;
SELECT 'never reached';
"""
BREAK = "INSERT INTO readings VALUES ('void', -274); INSERT INTO readings VALUES ('attic', 32)"


def test_a_flow_is_resumed_over_processes(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    files = {name: tmp_path / name for name in ("flow.sql", "go_on.sql", "break.sql")}
    for path, text in zip(files.values(), (FLOW, GO_ON, BREAK), strict=True):
        path.write_text(text)
    log = tmp_path / "output.txt"
    with (
        log.open("w") as output,
        subprocess.Popen(
            command(files["flow.sql"], "--warehouse", warehouse, "--page", "0"),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        ) as first,
    ):
        try:
            eventually(lambda: "rows in 3" in log.read_text() or first.poll() is not None, DEADLINE, log.read_text)

            place = re.search(r"^the page is at (http://127\.0\.0\.1:\d+/)$", log.read_text(), re.MULTILINE)
            assert place is not None
            with urllib.request.urlopen(place[1], timeout=60) as page:
                assert ">hottest</a>" in page.read().decode()

            refused = run("-", "--warehouse", warehouse, expect=2)
            assert f"in use by process {first.pid}" in refused

            first.send_signal(signal.SIGINT)
            assert first.wait(DEADLINE) == 0, log.read_text()
        finally:
            first.kill()
    text = log.read_text()
    assert_only_for_people(text)
    assert re.search(
        r"hottest STOPPED, rows in 3, micro-batches 1, buffered 0, flushes 1, rows flushed [23], last flush .*\((idle|stop)\)",
        text,
    )

    failed = run(files["go_on.sql"], "--until-idle", "--warehouse", warehouse, expect=1)
    assert "resumed flows: hottest" in failed
    assert [rows for _, rows in answers(failed)] == [
        [["cellar", "11"], ["roof", "22"]],
        [["attic", "31"], ["cellar", "12"], ["roof", "22"]],
    ]
    assert f"{files['go_on.sql']}:7:8: [UNRESOLVED_COLUMN" in failed
    assert "\n  7 |        fahrenheit FROM hottest;\n    |        ^\n" in failed
    assert "never reached" not in failed

    broken = run(files["break.sql"], "--until-idle", "--warehouse", warehouse, expect=3)
    assert re.search(r"^flow hottest has failed: .*colder than cold", broken, re.MULTILINE)
    assert "colder than cold" in (warehouse / "_sqlext" / "sqlext.log").read_text()


# Wrong usage is told before Spark starts.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum"], "Did you mean 'run'?"),
        (["run", "nofile.sql"], "File 'nofile.sql' does not exist."),
        (["run"], "Give a FILE.sql to run"),
        (["run", "ok.sql", "--timeout", "5 s"], "--timeout requires --until-idle"),
        (["run", "ok.sql", "--conf", "spark.driver.memory"], "expected KEY=VALUE"),
        (["run", "ok.sql", "--conf", "execution.runtime-mode=BATCH"], "is called `spark.sqlext.execution.runtime-mode`"),
        (["run", "ok.sql", "--conf", "driver.memory=4g"], "`driver.memory` is not a Spark setting"),
        (
            ["run", "ok.sql", "--warehouse", "s3a://bucket/tables"],
            "The warehouse must be a local folder, not s3a:/bucket/tables.",
        ),
        (["run", "ok.sql", "--warehouse", "/dev/null/tables"], "The warehouse folder /dev/null/tables cannot be used"),
        (["run", "latin.sql"], "latin.sql cannot be read: it is not UTF-8 text."),
        (["demo", "--days", "366"], "366 is not in the range"),
    ],
)
def test_wrong_usage(arguments: Sequence[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ok.sql").write_text("SELECT 1")
    Path("latin.sql").write_bytes(b"SELECT '\xe9'")
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not Path("sqlext-warehouse").exists()


def test_version_and_help() -> None:
    assert re.match(r"sqlext \d\S* \(pyspark 4\.2\.\S+, delta-spark 4\.4\.\S+\)", CliRunner().invoke(cli, ["--version"]).output)
    assert "sqlext demo" in CliRunner().invoke(cli, []).output
    assert "Exit codes:" in CliRunner().invoke(cli, ["run", "--help"]).output
