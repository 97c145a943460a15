"""What a shell needs to run statements: this process's own Spark, or a host that it is connected to, stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import Row

from sqlext.app.interrupts import Interrupts
from sqlext.app.output import Printer
from sqlext.app.problems import Problem
from sqlext.app.progress import JobStatus
from sqlext.app.script_run import ExitCode
from sqlext.app.statement_run import StatementRunner


class ShellRunner(Protocol):
    """The session behind a shell, and what runs beside its statements. Only the main thread uses it."""

    @property
    def printer(self) -> Printer: ...

    @property
    def interrupts(self) -> Interrupts: ...

    @property
    def statements(self) -> StatementRunner: ...

    @property
    def leaving(self) -> str:
        """What becomes of the flows when the shell is left, in one clause."""

    def open(self) -> str:
        """Print what the user must know at the start, and return what runs the statements, with its version."""

    def database(self) -> str:
        """Return the current database."""

    def rows(self, text: str) -> Sequence[Row]:
        """Return the rows of a short statement that the user did not type, for completion."""

    def running(self) -> str:
        """Describe what runs beside the statements, in one line; does not wait for anything."""

    def jobs(self) -> list[JobStatus]:
        """Return the jobs of this process that survive their driver, to show them while a statement runs."""

    def failures(self) -> list[str]:
        """Return a sentence for each flow and job that has failed in the background."""

    def problem(self, error: BaseException) -> Problem:
        """Describe a statement's error to the user."""

    def has_ended(self) -> bool:
        """Return whether no statement can run any more."""

    def stop(self) -> ExitCode:
        """End the session, print what becomes of the flows, and return the exit code."""
