"""What `sqlext run` does once Spark is there: statement by statement, then the flows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path
from typing import Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext import jvm
from sqlext.detect import is_ours
from sqlext.embedded import embedded_session, java_has_ended, log_path
from sqlext.errors import SetupError, SqlextError, UnsupportedError, WaitTimeoutError
from sqlext.interrupts import Interrupts
from sqlext.output import ErrorLog, Printer, Result, fetch
from sqlext.progress import FlowStatus, JobStatus, Statuses, display, print_summary
from sqlext.script import Problem, problem_of, report, split
from sqlext.session import disable, flow_host, registry_exists

logger = logging.getLogger(__name__)
T = TypeVar("T")

_JOB_TAG = "sqlext-statement"
_QUICK_SECONDS = 0.3
_DEFAULT_WAIT = timedelta(hours=1)


class ExitCode(IntEnum):
    """How `sqlext run` ended."""

    FINE = 0
    STATEMENT_FAILED = 1
    USAGE = 2
    FLOW_FAILED = 3
    INTERRUPTED = 130


@dataclass(frozen=True)
class ScriptFile:
    """A file as it was read."""

    name: str
    text: str


def run_embedded(
    printer: Printer,
    warehouse: Path,
    conf: Mapping[str, str],
    action: Callable[[Runner], ExitCode],
    echo: bool = True,
) -> ExitCode:
    """Start Spark over a warehouse folder, run `action` in it, and end Spark. What goes wrong on the way is printed."""
    logging.getLogger("sqlext.execution.host").addHandler(ErrorLog(printer))
    began, interrupts = datetime.now(UTC), Interrupts()
    try:
        with ExitStack() as stack:
            with printer.busy("starting Spark"):
                spark = stack.enter_context(embedded_session(warehouse, conf, printer.note))
            interrupts.install()
            return action(Runner(spark, printer, interrupts, began, echo))
    except SetupError as error:
        printer.error(error.message)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        logger.exception("unexpected")
        printer.error(f"sqlext failed ({type(error).__name__}: {error}). {log_path(warehouse)} has more; please report it.")
        return ExitCode.STATEMENT_FAILED


class Runner:
    """Runs files in one session and shows what happens. Used by one thread, the main one; statements run on threads of their own,
    so that Ctrl-C is seen at once.

    Args:
        began: before the session was made; a flow that failed after it failed in this run.
        echo: whether to print each statement before it runs.
    """

    def __init__(self, spark: SparkSession, printer: Printer, interrupts: Interrupts, began: datetime, echo: bool = True) -> None:
        self.spark = spark
        self._printer = printer
        self._interrupts = interrupts
        self._host = flow_host(spark)
        self._began = began
        self._echo = echo
        self._display = display(printer, Statuses(self.statuses, self.jobs))

    def statuses(self) -> list[FlowStatus]:
        """The flows of this process; asks no storage."""
        return [FlowStatus(*view) for view in self._host.local_views()]

    def jobs(self) -> list[JobStatus]:
        """The jobs of this process that survive it; asks no storage."""
        running = self._host.jobs.running()
        return [JobStatus(".".join(spec.target), progress.counts(), progress.summary()) for spec, progress in running]

    def run(self, scripts: Sequence[ScriptFile], until_idle: bool = False, timeout: str | None = None) -> ExitCode:
        """Run the files, then their flows, then stop these.

        Args:
            until_idle: stop the flows once all that had arrived is in their targets; else at an interrupt.
            timeout: of that wait, in Spark's words.
        """
        try:
            deadline = _DEFAULT_WAIT if timeout is None else jvm.parse_duration(self.spark, timeout)
        except ValueError as error:
            self._printer.error(f"--timeout cannot be `{timeout}` ({error}). Give a duration, such as '5 minutes'.")
            return ExitCode.USAGE
        if taken_up := [flow.name for flow in self.statuses()]:
            self._printer.note(f"flows taken up again: {', '.join(taken_up)}")
        if self._host.jobs.taken_up:
            self._printer.note(f"jobs taken up again: {', '.join(self._host.jobs.taken_up)}")
        if not (scripts or taken_up or self._host.jobs.taken_up):
            self._printer.note("there is no flow or job to take up again")
        try:
            for script in scripts:
                self._run_script(script)
            jobs = self._wait_for_jobs()
            code = self._run_flows(until_idle, deadline) or jobs
        except _StatementFailed:
            code = ExitCode.STATEMENT_FAILED
        except KeyboardInterrupt:
            self._printer.note("interrupted")
            code = ExitCode.INTERRUPTED
        return self._stop(code)

    # Statements.

    def _run_script(self, script: ScriptFile) -> None:
        statements = split(script.text)
        if not statements:
            self._printer.note(f"{script.name} has no statements")
        for statement in statements:
            if self._echo:
                self._printer.line(f"{script.name}:{statement.line}  {_first_words(statement.text)}", "dim")
            try:
                result = self._on_thread(
                    lambda text=statement.text: self._execute(text),  # type: ignore[misc]  # a default binds the loop's value
                    f"running {script.name}:{statement.line}",
                )
            except Exception as error:
                logger.exception("%s:%d failed", script.name, statement.line)
                self._printer.error(report(script.name, script.text, statement, self._problem(error)))
                raise _StatementFailed from None
            self._printer.result(result)

    def _execute(self, text: str) -> Result:
        ours = is_ours(text)
        if not ours:  # a flow's jobs would inherit the tag, and be cancelled with the statement that started it
            self.spark.sparkContext.addJobTag(_JOB_TAG)
        frame = self.spark.sql(text)
        if frame.isStreaming:
            raise UnsupportedError(
                "This SELECT reads a stream and has no end, so there is nothing to print. Keep its result in a table with CREATE "
                "STREAMING TABLE t AS SELECT .., or leave STREAM out to read what is there now."
            )
        return fetch(frame)

    def _on_thread(self, action: Callable[[], T], doing: str) -> T:
        """The result of `action`; the display lives meanwhile where somebody looks.

        Raises:
            KeyboardInterrupt: at an interrupt; what Spark runs for it is cancelled.
        """
        task = _Task(action)
        task.thread.join(_QUICK_SECONDS)
        while task.thread.is_alive() and not self._interrupts.asked.wait(0.05):
            if self._printer.is_live or self.jobs():
                self._display.watch(doing, lambda: not task.thread.is_alive() or self._interrupts.asked.is_set())
        if task.thread.is_alive():
            self.spark.sparkContext.cancelJobsWithTag(_JOB_TAG)
            raise KeyboardInterrupt
        return task.result()

    def _problem(self, error: BaseException) -> Problem:
        if java_has_ended(self.spark):
            return Problem("Java has ended unexpectedly; sqlext.log in the warehouse's folder _sqlext says more.")
        return problem_of(error)

    # Jobs and flows.

    def _wait_for_jobs(self) -> ExitCode:
        """Wait for the jobs that this process has taken up from one that died."""
        jobs = self._host.jobs
        if jobs.is_taking_up:
            self._display.watch(
                "ending the jobs of an earlier run",
                lambda: not jobs.is_taking_up or self._interrupts.asked.is_set() or java_has_ended(self.spark),
            )
        if jobs.is_taking_up:
            raise KeyboardInterrupt
        for job, reason in jobs.not_taken_up.items():
            self._printer.error(f"job {job} cannot be taken up: {reason}")
        return ExitCode.FLOW_FAILED if jobs.not_taken_up else ExitCode.FINE

    def _run_flows(self, until_idle: bool, timeout: timedelta) -> ExitCode:
        if not any(flow.is_running for flow in self.statuses()):
            return ExitCode.FINE
        if until_idle:
            return self._wait_until_idle(timeout)
        if not self._printer.is_live:
            self._printer.note("flows run until Ctrl-C")
        self._display.watch("Ctrl-C stops the flows, with everything flushed", self._is_over)
        return ExitCode.FINE

    def _is_over(self) -> bool:
        return (
            self._interrupts.asked.is_set() or java_has_ended(self.spark) or not any(flow.is_running for flow in self.statuses())
        )

    def _wait_until_idle(self, timeout: timedelta) -> ExitCode:
        ends = datetime.now(UTC) + timeout
        task = _Task(lambda: self._wait_for_all(ends))
        self._display.watch(
            "waiting until the flows are idle", lambda: not task.thread.is_alive() or self._interrupts.asked.is_set()
        )
        if task.thread.is_alive():
            raise KeyboardInterrupt
        try:
            task.result()
        except WaitTimeoutError:
            self._printer.error(f"The flows are not idle after {timeout}. The next run on this warehouse goes on where they are.")
            return ExitCode.FLOW_FAILED
        except (PySparkException, Py4JError, OSError):  # `_stop` says why when Java has died
            logger.exception("waiting for the flows failed")
            return ExitCode.FLOW_FAILED
        return ExitCode.FINE

    def _wait_for_all(self, ends: datetime) -> None:
        """Wait for each flow; again while that brought something new, since one flow may read what another has written."""
        for _ in range(len(self.statuses()) + 1):
            before = [flow.progress.rows_in for flow in self.statuses()]
            for flow in self.statuses():
                if flow.is_running:
                    self._wait_for(flow.name, ends)
            if before == [flow.progress.rows_in for flow in self.statuses()]:
                return

    def _wait_for(self, name: str, ends: datetime) -> None:
        try:
            self._host.wait(name, max(ends - datetime.now(UTC), timedelta()))
        except WaitTimeoutError:
            raise
        except SqlextError as error:  # its status tells; the others are waited for all the same
            logger.error("waiting for flow %s: %s", name, error)

    # The end.

    def _stop(self, code: ExitCode) -> ExitCode:
        if java_has_ended(self.spark):
            self._printer.error("Java has ended unexpectedly. Flows are taken up again in the next run.")
            return code or ExitCode.FLOW_FAILED
        running = [flow.name for flow in self.statuses() if flow.is_running]
        stop = _Task(lambda: disable(self.spark))
        if running and self._printer.is_live:
            self._display.watch("stopping the flows, with everything flushed", lambda: not stop.thread.is_alive())
        stop.thread.join()
        flows = self.statuses()
        print_summary(self._printer, flows)
        if running and self._echo:
            self._printer.note("the next run on this warehouse takes the flows up again, where they are now")
        has_failed = any(flow.has_failed for flow in flows) or self._failed_at_the_start()
        return code or (ExitCode.FLOW_FAILED if has_failed else ExitCode.FINE)

    def _failed_at_the_start(self) -> bool:
        """Whether a flow could not be taken up; it is known to the registry only."""
        if not registry_exists(self.spark):
            return False
        return any(view.status == "FAILED" and view.record.since >= self._began.isoformat() for view in self._host.views())


class _StatementFailed(Exception):  # noqa: N818  # told already; only ends the run
    pass


class _Task(Generic[T]):
    """An action on a thread of its own, which the end of the process does not wait for."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._result: list[T] = []
        self._error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="sqlext-task", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._action())
        except Exception as error:  # noqa: BLE001  # raised again by `result`
            self._error = error

    def result(self) -> T:
        """What the action returned, once the thread has ended; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]


def _first_words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else line[:97] + "..."
