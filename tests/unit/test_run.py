"""`sqlext run` before and beside Spark: what it reads, and how long it waits."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from sqlext import cli
from sqlext.app import runner
from sqlext.app.interrupts import Interrupts
from sqlext.app.progress import FlowStatus
from sqlext.app.script_run import ExitCode
from sqlext.execution.flows.status import FlowPhase, FlowProgress


def test_the_mark_at_the_beginning_of_a_text_is_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors and shells on Windows write it before UTF-8."""
    file = tmp_path / "a.sql"
    file.write_bytes(b"\xef\xbb\xbfSELECT 1;")
    assert cli._read(str(file)).text == "SELECT 1;"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfSELECT 1;"), encoding="utf-8"))
    assert cli._read("-").text == "SELECT 1;"


@pytest.mark.parametrize(
    ("folder", "conf", "is_refused"),
    [
        ("registry", [], False),
        ("views/registry", [], False),
        ("jobs/registry", [], False),
        ("hosts", [], True),
        ("hosts", ["-c", "spark.sqlext.home=s3a://lake/home"], False),
    ],
)
def test_without_a_file_there_must_be_something_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, conf: list[str], is_refused: bool
) -> None:
    (tmp_path / "_sqlext" / folder).mkdir(parents=True)
    monkeypatch.setattr(cli, "run_embedded", lambda *_, **__: ExitCode.FINE)
    result = CliRunner().invoke(cli.cli, ["run", "--warehouse", str(tmp_path), *conf])
    assert result.exit_code == (2 if is_refused else 0), result.output
    assert ("has no flow, view or job to resume" in " ".join(result.output.split())) is is_refused


class Flows:
    """A host's flows: one, which is up to date at once."""

    def __init__(self) -> None:
        self.waited: list[timedelta] = []

    def wait(self, name: tuple[str, ...], timeout: timedelta) -> None:
        self.waited.append(timeout)


class LeapingClock(datetime):
    """The wall clock, which somebody sets a day on after each look."""

    looks = 0

    @classmethod
    def now(cls, tz: Any = None) -> LeapingClock:
        cls.looks += 1
        return cls(2026, 1, cls.looks, tzinfo=UTC)


def test_the_wait_for_idle_flows_is_as_long_as_it_says_whatever_happens_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "datetime", LeapingClock)
    flows, running = Flows(), FlowStatus("f", FlowPhase.RUNNING, FlowProgress(), "", ("c", "s", "f"))
    made = object.__new__(runner.Runner)
    made.interrupts = Interrupts()
    made._host = cast(Any, SimpleNamespace(flows=flows))
    made._display = cast(Any, SimpleNamespace(watch=until_over))
    monkeypatch.setattr(made, "statuses", lambda: [running])
    assert made._wait_until_idle(timedelta(minutes=10)) is ExitCode.FINE
    (waited,) = flows.waited
    assert timedelta(minutes=9) < waited <= timedelta(minutes=10)


def until_over(_: str, is_over: Any) -> None:
    while not is_over():
        pass
