"""Signals as wishes, and statements that wait and see that they were canceled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sqlext.app.interrupts import Interrupts
from sqlext.app.statement_run import Run, Session, StatementRunner
from sqlext.errors import StatementCanceledError
from sqlext.extension.results import Result
from sqlext.spark import cancellation


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]  # a shell's background jobs ignore some of them
    found = Interrupts()
    found.install()
    yield found
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_the_first_signal_asks_for_the_end(interrupts: Interrupts) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    assert interrupts.asked.is_set()
    assert interrupts.must_end


def test_at_a_prompt_any_number_of_ctrl_c_leaves_the_process_alone(interrupts: Interrupts) -> None:
    interrupts.is_forgiving = True
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked.is_set()
    assert not interrupts.must_end


def test_a_prompt_is_told_to_end(interrupts: Interrupts) -> None:
    told: list[str] = []
    interrupts.is_forgiving, interrupts.on_end = True, lambda: told.append("end")
    os.kill(os.getpid(), signal.SIGINT)
    assert told == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert told == ["end"]
    assert interrupts.must_end


def test_a_second_signal_ends_the_process_at_once() -> None:
    script = "import os, signal\nfrom sqlext.app.interrupts import Interrupts\nInterrupts().install()\n"
    twice = "for _ in range(2): os.kill(os.getpid(), signal.SIGTERM)\nprint('never')"
    ended = subprocess.run([sys.executable, "-c", script + twice], capture_output=True, text=True)
    assert ended.returncode == 128 + signal.SIGTERM
    assert (ended.stdout, ended.stderr.strip()) == ("", "ended at once; flows resume in the next run")


class Quick:
    """A session whose statements end at once; some of them while Ctrl-C is pressed."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.ran: list[str] = []

    def execute(self, run: Run) -> Result:
        self.ran.append(run.text)
        if run.text == "Ctrl-C":
            self._interrupts.asked.set()
        return Result([], [], [])


def test_after_ctrl_c_no_statement_starts_however_quick_it_would_be() -> None:
    interrupts = Interrupts()
    session = Quick(interrupts)
    statements = StatementRunner(cast(Session, session), interrupts)
    statements.run("SELECT 1", lambda _: None)
    with pytest.raises(KeyboardInterrupt, match=r"^The statement ended before it could be canceled\.$"):
        statements.run("Ctrl-C", lambda _: None)
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted$"):
        statements.run("SELECT 2", lambda _: None)
    assert session.ran == ["SELECT 1", "Ctrl-C"]
    interrupts.asked.clear()
    statements.run("SELECT 3", lambda _: None)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Of a statement whose Java thread nobody interrupts."""
    monkeypatch.setattr(cancellation, "_is_interrupted", lambda _: False)
    return cast(SparkSession, None)


def test_a_wait_that_nobody_can_cancel_is_an_ordinary_one(session: SparkSession) -> None:
    assert not cancellation.wait_for(session, threading.Event().wait, 0.01)


def test_a_wait_ends_with_what_it_waits_for_and_at_its_deadline(session: SparkSession) -> None:
    came, asked = threading.Event(), threading.Event()
    with cancellation.canceled_by(asked):
        assert not cancellation.wait_for(session, came.wait, 0.01)
        came.set()
        assert cancellation.wait_for(session, came.wait, 60)


def test_a_wait_ends_when_the_statement_is_canceled(session: SparkSession) -> None:
    asked = threading.Event()
    with cancellation.canceled_by(asked):
        threading.Timer(0.05, asked.set).start()
        with pytest.raises(StatementCanceledError, match=r"^The statement was canceled\.$"):
            cancellation.wait_for(session, threading.Event().wait, 60)
        with pytest.raises(StatementCanceledError, match=r"canceled\. RESUME it\.$"):
            cancellation.raise_if_canceled(session, " RESUME it.")
    cancellation.raise_if_canceled(session)
