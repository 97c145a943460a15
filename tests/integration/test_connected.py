"""Clients of a running host: `sqlext run --connect` and `sqlext shell --connect`, without Java and without its warehouse."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.java import java_options
from tests.support import eventually
from tests.terminal import Terminal

DEADLINE = 300.0
ENTER, CTRL_C, CTRL_D, TAB = "\r", "\x03", "\x04", "\t"
SLEEP = "SELECT java_method('java.lang.Thread', 'sleep', 600000L) FROM range(2)"
PATH = os.pathsep.join(
    folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "java").exists() and folder
)

pytestmark = pytest.mark.timeout(2 * DEADLINE)


@dataclass(frozen=True)
class Host:
    """A process that serves Spark Connect."""

    process: subprocess.Popen[bytes]
    warehouse: Path
    address: str

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a client: there is no Java, and no warehouse in its folder."""
        return {**os.environ, "PATH": PATH, "JAVA_HOME": "/nowhere", "NO_COLOR": "1"}

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "sqlext.cli", *map(str, arguments), "--connect", self.address]

    def run(self, text: str, *options: str, expect: int = 0) -> str:
        """What `sqlext run` prints, to either output."""
        folder = self.warehouse.parent
        file = folder / "script.sql"
        file.write_text(text)
        ended = subprocess.run(
            self.command("run", file, *options),
            cwd=folder,
            env={**self.environment, "PYTHONPATH": os.getcwd()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
        )
        assert ended.returncode == expect, ended.stdout
        assert re.search(r"Traceback|grpc|StatusCode|Exception|SQLSTATE|== SQL|WARN", ended.stdout) is None, ended.stdout
        return ended.stdout


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("host")
    output = folder / "output.txt"
    command = [sys.executable, "-m", "sqlext.cli", "connect-server", "--port", "0", "--warehouse", str(folder / "warehouse")]
    command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}"]
    with output.open("w") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: "sc://" in output.read_text() or process.poll() is not None, DEADLINE, output.read_text)
        place = re.search(r"sc://(127\.0\.0\.1:\d+), authentication none", output.read_text())
        assert place is not None, output.read_text()
        found = Host(process, folder / "warehouse", place[1])
        found.run(
            "CREATE TABLE readings (sensor STRING, celsius INT) USING delta;"
            "INSERT INTO readings VALUES ('roof', 20), ('roof', 22), ('cellar', 11);"
            "CREATE STREAMING TABLE hottest TBLPROPERTIES ('execution.flush.max-interval' = '1 hour') "
            "AS SELECT sensor, max(celsius) AS celsius FROM STREAM readings GROUP BY sensor;"
        )
        yield found
    finally:
        process.kill()
        process.wait()


def test_a_file_runs_at_the_host_whose_flows_go_on(host: Host) -> None:
    printed = host.run(
        "INSERT INTO readings VALUES ('attic', 31);\nWAIT FLOW hottest;\nSELECT * FROM hottest ORDER BY sensor;",
    )
    assert "attic        31\ncellar       11\nroof         22\n" in printed
    assert f"flows go on at {host.address}" in printed
    assert "RUNNING" in host.run("SHOW FLOWS;")
    assert not (host.warehouse.parent / "sqlext-warehouse").exists()


def test_until_idle_waits_for_the_flows_of_the_host(host: Host) -> None:
    host.run("INSERT INTO readings VALUES ('porch', 9);", "--until-idle", "--timeout", "5 minutes")
    assert "porch         9\n" in host.run("SELECT * FROM hottest WHERE sensor = 'porch';")
    assert "--timeout cannot be `soon`." in host.run("SELECT 1;", "--until-idle", "--timeout", "soon", expect=2)


def test_the_first_failure_ends_a_file_with_its_place(host: Host) -> None:
    printed = host.run("SELECT 1;\nSELECT sensor,\n       fahrenheit FROM readings;\nSELECT 'never reached';", expect=1)
    assert re.search(r"script\.sql:3:8: \[UNRESOLVED_COLUMN", printed)
    assert "\n  3 |        fahrenheit FROM readings;\n    |        ^\n" in printed
    assert "never reached" not in printed
    assert "This SELECT reads a stream and never ends" in host.run("SELECT * FROM STREAM readings;", expect=1)
    printed = host.run("STOP FLOW nobody;", expect=1)
    assert "script.sql:1:1: There is no flow `nobody` in spark_catalog.default. SHOW FLOWS lists them.\n" in printed


def test_who_finds_the_warehouse_in_use_learns_how_to_connect(host: Host, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sqlext.cli", "run", "-", "--warehouse", str(host.warehouse)],
        input="SELECT 1;",
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert ended.returncode == 2
    assert f"in use by process {host.process.pid}. It serves Spark Connect: sqlext shell --connect {host.address}" in ended.stderr


def test_at_the_prompt(host: Host, tmp_path: Path) -> None:
    environment = {**host.environment, "XDG_STATE_HOME": str(tmp_path)}
    with Terminal(host.command("shell"), environment) as terminal:
        prompt = r"sqlext \((default|\?)\)>"  # a busy host may not say in time which database it is
        terminal.expect(f"(?s)Ctrl-D leaves: flows go on at {host.address}.*{prompt}", DEADLINE)

        def say(keys: str, answer: str) -> None:
            terminal.type(keys)
            terminal.expect(f"(?s){answer}.*{prompt}", DEADLINE)

        say("SELECT id FROM range(250);" + ENTER, r"\(the first 100 rows; 150 left out\)\s+250 rows, ")
        say("SELECT sensor FROM readigs;" + ENTER, r"line 1, column 20: .*cannot be found\. Did you mean `readings`\?")
        say("\\?" + ENTER, f"leave, as Ctrl-D does: flows go on at {host.address}")

        terminal.type("SHOW FLOWS \\watch 0.5" + ENTER)
        terminal.expect(r"every 0\.5 s[^╰]*│ name +│ hottest ", DEADLINE)
        say(CTRL_C, "")

        terminal.type(SLEEP + ";" + ENTER)
        terminal.expect(r"Ctrl-C cancels, \d+ s, 0 of 2 tasks", DEADLINE)
        say(CTRL_C, r"The statement was canceled\.")

        terminal.type("DESCRIBE FLOW ho" + TAB)
        terminal.expect("ttest", DEADLINE)
        say(";" + ENTER, r"output_mode\s.*\d+ rows, ")

        terminal.type("\\q" + ENTER)
        assert terminal.end(DEADLINE) == 0, terminal.text
    assert "Traceback" not in terminal.text
    assert "RUNNING" in host.run("SHOW FLOWS;")


def test_a_host_that_dies_is_told(host: Host, tmp_path: Path) -> None:
    """The last test: it kills the host."""
    file = tmp_path / "sleep.sql"
    file.write_text(f"{SLEEP};")
    with (tmp_path / "printed").open("w+") as printed:
        with subprocess.Popen(host.command("run", file), env=host.environment, stdout=printed, stderr=printed) as client:
            eventually(lambda: "sleep.sql:1" in (tmp_path / "printed").read_text(), DEADLINE)
            pid = host.process.pid
            java = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for each in (pid, *map(int, java)):
                os.kill(each, signal.SIGKILL)
            assert client.wait(DEADLINE) == 1
        text = (tmp_path / "printed").read_text()
    assert f"The connection to {host.address} is lost: the host has ended, or cannot be reached." in text
    assert re.search("Traceback|grpc|StatusCode", text) is None
    assert f"No server listens at {host.address}." in host.run("SELECT 1;", expect=2)
