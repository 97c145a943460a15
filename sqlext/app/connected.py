"""The client of a host: `sqlext shell --connect` and `sqlext run --connect`. It needs no Java, and opens no warehouse."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from datetime import timedelta

from pyspark.errors import PySparkException
from pyspark.sql import Row

from sqlext.app.connect_address import ConnectAddress
from sqlext.app.connection import ConnectedSession
from sqlext.app.host_flows import SHOW_FLOWS, HostFlow, HostLooks, flows_of, line_of
from sqlext.app.interrupts import Interrupts
from sqlext.app.output import Printer
from sqlext.app.problems import Problem, problem_of, silence_spark
from sqlext.app.progress import JobStatus, Statuses, display
from sqlext.app.script_run import ExitCode, ScriptFile, ScriptRunner, StatementFailed, exit_code_of
from sqlext.app.statement_run import StatementRunner
from sqlext.clock import Deadline
from sqlext.errors import SetupError, SqlextError

logger = logging.getLogger(__name__)

_DEFAULT_WAIT = timedelta(hours=1)
_NAMES_WITHIN = 10.0
_DATABASE_WITHIN = 5.0
_FLOWS_WITHIN = 60.0
_DURATION = re.compile(r"[\w\s.]+", re.ASCII)
_CLOCK_TIME = re.compile(r"(?ai)(\d{1,18})\s*(us|ms|s|m|min|h|d)")
_ISO_TIME = re.compile(r"(?ai)P(?!\Z)(?:(\d{1,18})D)?(?:T(?=\d)(?:(\d{1,18})H)?(?:(\d{1,18})M)?(?:(\d{1,18}(?:\.\d*)?)S)?)?")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def run_connected(printer: Printer, address: ConnectAddress, action: Callable[[ConnectedRunner], ExitCode]) -> ExitCode:
    """Open a session at a host, run `action` with it, and end the session. Errors are printed."""
    logging.getLogger().addHandler(logging.NullHandler())  # or Python prints warnings and errors that are logged
    logging.captureWarnings(True)
    silence_spark()
    interrupts = Interrupts(f"ended at once; flows go on at {address}")

    def run() -> ExitCode:
        with printer.busy(f"connecting to {address}"):
            session = ConnectedSession(address)
        interrupts.install()
        return action(ConnectedRunner(session, address, printer, interrupts))

    return exit_code_of(run, printer)


class ConnectedRunner:
    """A session at a host. It runs statements of files and of a shell; only the main thread uses it."""

    def __init__(self, session: ConnectedSession, address: ConnectAddress, printer: Printer, interrupts: Interrupts) -> None:
        self.printer = printer
        self.interrupts = interrupts
        self.statements = StatementRunner(session, interrupts)
        self._session = session
        self._address = address
        self._display = display(printer, Statuses(list, list, self.statements.tasks))
        self._looks = HostLooks(lambda: line_of(session.rows(SHOW_FLOWS, _FLOWS_WITHIN)))

    # For `sqlext run`.

    def run(self, scripts: Sequence[ScriptFile], until_idle: bool = False, timeout: str | None = None) -> ExitCode:
        """Run the files, and leave the flows running at the host.

        Args:
            until_idle: whether to wait until all that had arrived is in the targets of the host's flows.
            timeout: the limit of that wait, a duration; None: one hour.
        """
        self._note_plain_spark()
        code = ExitCode.FINE
        try:
            limit = _DEFAULT_WAIT if timeout is None else self._duration(timeout)
            ScriptRunner(self.printer, self.statements, self._watch, self.problem).run(scripts)
            if until_idle:
                code = self._wait_until_idle(limit)
        except StatementFailed:
            code = ExitCode.STATEMENT_FAILED
        except SetupError as error:
            self.printer.error(error.message)
            code = ExitCode.USAGE
        except (SqlextError, PySparkException, OSError) as error:  # while it waits
            logger.exception("waiting for the host's flows failed")
            self.printer.error(self.problem(error).message)
            code = ExitCode.FLOW_FAILED
        except KeyboardInterrupt:
            self.printer.note("interrupted")
            code = ExitCode.INTERRUPTED
        return self.stop(code)

    def _duration(self, text: str) -> timedelta:
        """Return the length of a duration, of which the host reads intervals.

        Raises:
            SetupError: it is no duration.
        """
        seconds = _seconds(text.strip())
        if seconds is None and _DURATION.fullmatch(text):
            since = "TIMESTAMP '1970-01-01 00:00:00 UTC'"
            rows = self._session.rows(f"SELECT unix_micros({since} + try_cast('{text}' AS INTERVAL))", _FLOWS_WITHIN)
            seconds = (rows[0][0] or 0) / 1e6
        if not 0 < (seconds or 0) < timedelta.max.total_seconds():
            raise SetupError(f"--timeout cannot be `{text}`. Give a duration, such as '5 minutes'.")
        return timedelta(seconds=seconds or 0)

    def _watch(self, doing: str, is_over: Callable[[], bool]) -> None:
        if self.printer.is_live:
            self._display.watch(doing, is_over)

    def _wait_until_idle(self, within: timedelta) -> ExitCode:
        """Wait for each flow, and again while that brought new rows, since one flow may read what another has written."""
        deadline, flows = Deadline(within.total_seconds()), self._flows()
        for _ in range(len(flows) + 1):
            for flow in flows:
                if flow.can_be_waited_for and not self._has_waited(flow, deadline):
                    self.printer.error(f"The flows are not idle after {within}.")
                    return ExitCode.FLOW_FAILED
            before, flows = flows, self._flows()
            if [(flow.full_name, flow.rows_in) for flow in before] == [(flow.full_name, flow.rows_in) for flow in flows]:
                break
        failed = [flow for flow in flows if flow.has_failed]
        for flow in failed:
            self.printer.error(f"flow {flow.name} has failed: {flow.error}")
        return ExitCode.FLOW_FAILED if failed else ExitCode.FINE

    def _has_waited(self, flow: HostFlow, deadline: Deadline) -> bool:
        """Wait for a flow, and return whether that was possible in time."""
        text = f"WAIT FLOW {flow.full_name} TIMEOUT {math.ceil(deadline.left)} seconds"
        try:
            if not deadline.has_passed:
                self.statements.run(text, lambda is_over: self._watch(f"waiting for flow {flow.name}", is_over))
        except PySparkException as error:  # its status shows why; the other flows are waited for nevertheless
            logger.error("waiting for flow %s: %s", flow.name, error)
        return not deadline.has_passed

    def _flows(self) -> list[HostFlow]:
        return flows_of(self._session.rows(SHOW_FLOWS, _FLOWS_WITHIN)) if self._session.has_sqlext else []

    # For the shell.

    @property
    def leaving(self) -> str:
        """What becomes of the flows."""
        return f"flows go on at {self._address}"

    def open(self) -> str:
        """Print whether the host has no sqlext, and return where and what it is."""
        self._note_plain_spark()
        return f"{self._address}, Spark {self._session.version}"

    def database(self) -> str:
        """Return the current database."""
        return str(self._session.rows("SELECT current_database()", _DATABASE_WITHIN)[0][0])

    def rows(self, text: str) -> Sequence[Row]:
        """Return the rows of a short statement that the user did not type."""
        return self._session.rows(text, _NAMES_WITHIN)

    def running(self) -> str:
        """Describe what runs at the host, as it was some seconds ago."""
        return f"{self._address}  {self._looks.line() if self._session.has_sqlext else ''}".rstrip()

    def jobs(self) -> list[JobStatus]:
        """Return no jobs: this process has none."""
        return []

    def failures(self) -> list[str]:
        """Return nothing: SHOW FLOWS has what failed at the host."""
        return []

    def has_ended(self) -> bool:
        """Return false: a lost connection may come back."""
        return False

    def problem(self, error: BaseException) -> Problem:
        """Describe a statement's error to the user."""
        return problem_of(error)

    # The end.

    def stop(self, code: ExitCode = ExitCode.FINE) -> ExitCode:
        """End the session at the host, which keeps its flows.

        Args:
            code: the exit code so far, which is returned.
        """
        self._session.close()
        if self._session.has_sqlext:
            self.printer.note(self.leaving)
        return code

    def _note_plain_spark(self) -> None:
        if not self._session.has_sqlext:
            self.printer.note(f"{self._address} is a Spark Connect server without sqlext: statements of sqlext fail there")


def _seconds(text: str) -> float | None:
    """Return the length of a time in the format of Spark's settings or of ISO 8601, which are no intervals; None: of neither.

    >>> _seconds("2 min"), _seconds("PT1M30.5S"), _seconds("5 minutes")
    (120.0, 90.5, None)
    """
    if match := _CLOCK_TIME.fullmatch(text):
        return int(match[1]) * _UNITS[match[2].lower()]
    if match := _ISO_TIME.fullmatch(text):
        return sum(float(number or 0) * _UNITS[unit] for number, unit in zip(match.groups(), "dhms", strict=True))
    return None
