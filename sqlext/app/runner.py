"""The work of `sqlext run` and of the servers once Spark has started: statements or clients, then the flows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from sqlext.app.embedded import checked, embedded_session, java_has_ended, log_path
from sqlext.app.interrupts import Interrupts
from sqlext.app.local_session import LocalSession
from sqlext.app.output import ErrorLog, Printer
from sqlext.app.problems import Problem, problem_of
from sqlext.app.progress import FlowStatus, JobStatus, Statuses, display, print_summary, status_line
from sqlext.app.script_run import ExitCode, ScriptFile, ScriptRunner, StatementFailed, exit_code_of
from sqlext.app.served import ServedFile
from sqlext.app.statement_run import StatementRunner, Task
from sqlext.app.take_over import TakeOver
from sqlext.app.warehouse_lock import WarehouseLock
from sqlext.clock import Deadline
from sqlext.errors import SetupError, SqlextError, WaitTimeoutError
from sqlext.execution.flows.status import FlowPhase
from sqlext.extension.session import disable, host_of, registry_exists
from sqlext.options import LOG_FORMAT_KEY
from sqlext.page.address import Address
from sqlext.page.server import page_server
from sqlext.server.server import Server, hive_settings
from sqlext.spark import jvm

logger = logging.getLogger(__name__)

_DEFAULT_WAIT = timedelta(hours=1)
_POLL_SECONDS = 0.05


def run_embedded(
    printer: Printer,
    warehouse: Path,
    conf: Mapping[str, str],
    action: Callable[[Runner], ExitCode],
    echo: bool = True,
    page: Address | None = None,
    stands_by: bool = False,
    page_waits: bool = False,
) -> ExitCode:
    """Start Spark over a warehouse folder, run `action`, and end Spark. Errors are printed.

    Args:
        echo: whether to print each statement before it runs.
        page: the address at which the page is served meanwhile; None: there is no page.
        stands_by: whether to wait first until no other process uses the warehouse.
        page_waits: whether the page answers only when `action` says so (`Runner.serve`), rather than as soon as Spark runs.
    """
    began, interrupts = datetime.now(UTC), Interrupts()

    def run() -> ExitCode:
        with ExitStack() as stack:
            flows, errors = logging.getLogger("sqlext.execution.flows"), ErrorLog(printer)
            flows.addHandler(errors)
            stack.callback(flows.removeHandler, errors)
            lock = None
            if stands_by:
                checked(conf)  # now rather than when the time has come
                lock = stack.enter_context(WarehouseLock(warehouse, printer.note, stands_by=True))
            page_of = stack.enter_context(page_server(page, printer.note))
            with printer.busy("starting Spark"):
                spark = stack.enter_context(embedded_session(warehouse, conf, printer.note, lock))
            interrupts.install()
            show_page = partial(stack.enter_context, page_of.showing(spark))
            if not page_waits:
                show_page()
            return action(Runner(spark, printer, interrupts, began, echo, show_page))

    return exit_code_of(run, printer, str(log_path(warehouse, conf.get(LOG_FORMAT_KEY, ""))))


def serve_embedded(
    printer: Printer,
    warehouse: Path,
    conf: Mapping[str, str],
    servers: Sequence[Server],
    page: Address | None,
    stands_by: bool = False,
) -> ExitCode:
    """Start Spark over a warehouse folder, serve until a signal arrives, and end Spark.

    Args:
        stands_by: whether to wait first until no other process uses the warehouse, nor, so, its ports.
    """
    try:
        for server in [] if stands_by else servers:
            server.check()
    except SetupError as error:
        printer.error(error.message)
        return ExitCode.USAGE
    settings = {key: value for server in servers for key, value in server.settings().items()} | hive_settings(conf)
    serve = partial(Runner.serve, servers=servers, file=ServedFile(warehouse))
    return run_embedded(printer, warehouse, settings, serve, page=page, stands_by=stands_by, page_waits=True)


class Runner:
    """A session with the flows and jobs of this process. It runs statements and shows progress; only the main thread uses it.

    Args:
        began: a time before the session was created; a flow that failed later failed in this run.
        echo: whether to print each statement before it runs.
        show_page: lets the page answer, for `serve`.
    """

    def __init__(
        self,
        spark: SparkSession,
        printer: Printer,
        interrupts: Interrupts,
        began: datetime,
        echo: bool = True,
        show_page: Callable[[], object] = lambda: None,
    ) -> None:
        self.spark = spark
        self.printer = printer
        self.interrupts = interrupts
        self._session = LocalSession(spark)
        self.statements = StatementRunner(self._session, interrupts)
        self._host = host_of(spark)
        self._began = began
        self._echo = echo
        self._show_page = show_page
        self._display = display(printer, Statuses(self.statuses, self.jobs, self.statements.tasks))

    def statuses(self) -> list[FlowStatus]:
        """Return the states of this process's flows, without reading storage."""
        return [FlowStatus(*view) for view in self._host.flows.local_views()]

    def jobs(self) -> list[JobStatus]:
        """Return the states of this process's jobs that survive their driver, without reading storage."""
        running = self._host.jobs.running()
        return [JobStatus(".".join(spec.target), progress.counts(), progress.summary()) for spec, progress in running]

    def run(self, scripts: Sequence[ScriptFile], until_idle: bool = False, timeout: str | None = None) -> ExitCode:
        """Run the files, then their flows, then stop the flows.

        Args:
            until_idle: whether to stop the flows once all that had arrived is in their targets, rather than at an interrupt.
            timeout: the limit of that wait, a duration in Spark's syntax; None: one hour.
        """
        try:
            deadline = _DEFAULT_WAIT if timeout is None else jvm.parse_duration(self.spark, timeout)
        except ValueError as error:
            self.printer.error(f"--timeout cannot be `{timeout}` ({error}). Give a duration, such as '5 minutes'.")
            return ExitCode.USAGE
        self._session.ends_when_idle = until_idle
        if not self.note_resumed() and not scripts:
            self.printer.note("there is no flow, view or job to resume")
        return self._run_to_the_end(lambda: self._run_scripts(scripts), until_idle, deadline)

    def run_program(self, program: Callable[[], ExitCode]) -> ExitCode:
        """Run a program that sends its own statements and prints its own output, wait until the flows are idle, and stop them.

        An interrupt does not wait for the program to return: its statements fail when Spark ends.
        """
        self.note_resumed()
        return self._run_to_the_end(lambda: self._on_thread(program), True, _DEFAULT_WAIT)

    def _run_to_the_end(self, statements: Callable[[], ExitCode], until_idle: bool, deadline: timedelta) -> ExitCode:
        """Run the statements, wait for the jobs of an earlier process, then run the flows and stop them."""
        try:
            code = statements()
            jobs = self._wait_for_jobs()
            flows = self._run_flows(until_idle, deadline)
            code = code or flows or jobs
        except StatementFailed:
            code = ExitCode.STATEMENT_FAILED
        except KeyboardInterrupt:
            self.printer.note("interrupted")
            code = ExitCode.INTERRUPTED
        return self.stop(code)

    def note_resumed(self) -> bool:
        """Print which flows, views and jobs of an earlier process this one resumes, and return whether there are any."""
        flows, jobs = [flow.name for flow in self.statuses()], self._host.jobs.resumed
        self._host.views.resume()
        views = self._host.views.resumed
        for what, names in (("flows", flows), ("materialized views", views), ("jobs", jobs)):
            if names:
                self.printer.note(f"resumed {what}: {', '.join(names)}")
        return bool(flows or views or jobs)

    # For the shell.

    leaving = "the flows are flushed and stopped"

    def open(self) -> str:
        """Print what of an earlier process is resumed, and return the versions of Spark and Delta."""
        self.note_resumed()
        return f"Spark {self.spark.version}, Delta {version('delta-spark')}"

    def database(self) -> str:
        """Return the current database."""
        return self.spark.catalog.currentDatabase()

    def rows(self, text: str) -> Sequence[Row]:
        """Return the rows of a short statement that the user did not type."""
        return self.spark.sql(text).collect()

    def running(self) -> str:
        """Describe what runs in this process, in one line, without reading storage."""
        flows = self.statuses()
        return status_line([flow.phase for flow in flows], sum(flow.progress.buffered_rows for flow in flows), len(self.jobs()))

    def failures(self) -> list[str]:
        """Return a sentence for each flow and job that has failed in the background."""
        failed = [f"flow {flow.name} has failed: {flow.error}" for flow in self.statuses() if flow.has_failed]
        return [*failed, *self.jobs_not_resumed()]

    def has_ended(self) -> bool:
        """Return whether Java has ended, so that no statement can run any more."""
        return java_has_ended(self.spark)

    # Jobs and servers.

    def jobs_not_resumed(self) -> list[str]:
        """Return a sentence for each job of an earlier process that this one could not resume."""
        return [f"job {job} cannot be resumed: {reason}" for job, reason in dict(self._host.jobs.not_resumed).items()]

    def serve(self, servers: Sequence[Server], file: ServedFile) -> ExitCode:
        """Start the servers; at an interrupt, stop them and the flows.

        Args:
            file: gets the servers' addresses meanwhile, for processes that find the warehouse in use.

        Raises:
            SetupError: a server cannot start.
        """
        self.note_resumed()
        try:
            started = []
            for server in servers:
                started.append(server.start(self.spark))
                self.printer.line(str(started[-1]))
            file.write(os.getpid(), started)
            self._show_page()  # not before: who asks it whether this host is ready will come with statements
            with TakeOver(self.spark):
                self._display.watch("Ctrl-C stops the server and the flows, with everything flushed", self._is_asked_or_dead)
        finally:
            file.delete()
            if not java_has_ended(self.spark):
                for server in servers:
                    server.stop()
        return self.stop(ExitCode.FINE)

    # Statements.

    def _run_scripts(self, scripts: Sequence[ScriptFile]) -> ExitCode:
        ScriptRunner(self.printer, self.statements, self._watch, self.problem, self._echo).run(scripts)
        return ExitCode.FINE

    def _watch(self, doing: str, is_over: Callable[[], bool]) -> None:
        """Show the progress of a statement that takes long, on a terminal or while jobs run."""
        if self.printer.is_live or self.jobs():
            self._display.watch(doing, is_over)

    def _on_thread(self, action: Callable[[], ExitCode]) -> ExitCode:
        """Return the result of `action`, which runs on a thread of its own.

        Raises:
            KeyboardInterrupt: at an interrupt.
        """
        task = Task(action)
        while task.thread.is_alive() and not self.interrupts.asked.wait(_POLL_SECONDS):
            pass
        if task.thread.is_alive():
            raise KeyboardInterrupt
        return task.result()

    def problem(self, error: BaseException) -> Problem:
        """Describe a statement's error to the user."""
        if java_has_ended(self.spark):
            return Problem("Java has ended unexpectedly. See sqlext.log in the warehouse's folder _sqlext.")
        return problem_of(error)

    # Jobs and flows.

    def _wait_for_jobs(self) -> ExitCode:
        """Wait for the jobs that this process has resumed after their driver died."""
        jobs = self._host.jobs
        if jobs.is_resuming:
            self._display.watch(
                "finishing the jobs of an earlier run",
                lambda: not jobs.is_resuming or self.interrupts.asked.is_set() or java_has_ended(self.spark),
            )
        if jobs.is_resuming:
            raise KeyboardInterrupt
        for text in self.jobs_not_resumed():
            self.printer.error(text)
        return ExitCode.FLOW_FAILED if jobs.not_resumed else ExitCode.FINE

    def _run_flows(self, until_idle: bool, timeout: timedelta) -> ExitCode:
        if until_idle and any(flow.is_running for flow in self.statuses()):
            return self._wait_until_idle(timeout)
        if until_idle or not self._has_work():
            return ExitCode.FINE
        if not self.printer.is_live:
            self.printer.note("flows run until Ctrl-C")
        self._display.watch("Ctrl-C stops the flows, with everything flushed", self._is_over)
        return ExitCode.FINE

    def _is_over(self) -> bool:
        return self._is_asked_or_dead() or not self._has_work()

    def _has_work(self) -> bool:
        """Return whether flows run, or views are refreshed by their schedules."""
        return any(flow.is_running for flow in self.statuses()) or self._host.views.has_scheduled

    def _is_asked_or_dead(self) -> bool:
        return self.interrupts.asked.is_set() or java_has_ended(self.spark)

    def _wait_until_idle(self, timeout: timedelta) -> ExitCode:
        deadline = Deadline(timeout.total_seconds())
        task = Task(lambda: self._wait_for_all(deadline))
        self._display.watch(
            "waiting until the flows are idle", lambda: not task.thread.is_alive() or self.interrupts.asked.is_set()
        )
        if task.thread.is_alive():
            raise KeyboardInterrupt
        try:
            task.result()
        except WaitTimeoutError:
            self.printer.error(f"The flows are not idle after {timeout}. The next run on this warehouse resumes them.")
            return ExitCode.FLOW_FAILED
        except (PySparkException, Py4JError, OSError):  # `stop` says why when Java has died
            logger.exception("waiting for the flows failed")
            return ExitCode.FLOW_FAILED
        return ExitCode.FINE

    def _wait_for_all(self, deadline: Deadline) -> None:
        """Wait for each flow, and again while that brought new rows, since one flow may read what another has written."""
        for _ in range(len(self.statuses()) + 1):
            before = [flow.progress.rows_in for flow in self.statuses()]
            for flow in self.statuses():
                if flow.is_running:
                    self._wait_for(flow, deadline)
            if before == [flow.progress.rows_in for flow in self.statuses()]:
                return

    def _wait_for(self, flow: FlowStatus, deadline: Deadline) -> None:
        try:
            self._host.flows.wait(flow.full_name, timedelta(seconds=deadline.left))
        except WaitTimeoutError:
            raise
        except SqlextError as error:  # its status shows the error; the other flows are waited for nevertheless
            logger.error("waiting for flow %s: %s", flow.name, error)

    # The end.

    def stop(self, code: ExitCode = ExitCode.FINE) -> ExitCode:
        """Stop the flows, with everything flushed, and print their final state.

        Args:
            code: the exit code so far.

        Returns:
            The exit code of this process: `code`, unless that is FINE and a flow has failed.
        """
        if java_has_ended(self.spark):
            self.printer.error("Java has ended unexpectedly. Flows resume in the next run.")
            return code or ExitCode.FLOW_FAILED
        running = [flow.name for flow in self.statuses() if flow.is_running]
        stop = Task(lambda: disable(self.spark))
        if running and self.printer.is_live:
            self._display.watch("stopping the flows, with everything flushed", lambda: not stop.thread.is_alive())
        stop.thread.join()
        flows = self.statuses()
        print_summary(self.printer, flows)
        if running and self._echo:
            self.printer.note("the next run on this warehouse resumes the flows")
        has_failed = any(flow.has_failed or flow.phase is FlowPhase.RETRYING for flow in flows) or self._failed_at_the_start()
        return code or (ExitCode.FLOW_FAILED if has_failed else ExitCode.FINE)

    def _failed_at_the_start(self) -> bool:
        """Return whether a flow could not be resumed; such a flow is in the registry only."""
        if not registry_exists(self.spark):
            return False
        began, bad = self._began.isoformat(), ("FAILED", "RETRYING")
        return any(view.status in bad and view.record.since >= began for view in self._host.flows.views())
