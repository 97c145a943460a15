"""Traces of the statements sent to the page, made in a process whose time and memory are limited.

The process gets one request per line, and answers with a trace, or with a duration to parse, since Spark's parsers are here.
"""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pyspark import cloudpickle

from sqlext.clock import Deadline
from sqlext.errors import SqlextError, WaitTimeoutError
from sqlext.functions.scalar import FUNCTIONS, PythonFunction
from sqlext.options import Level, ValueText
from sqlext.page.helper import HelperProcess
from sqlext.page.snapshot import Trace
from sqlext.page.trace import MOST_CHARACTERS, SessionOptions, too_long
from sqlext.planner.rule_book import rules_in_force
from sqlext.sql.rewriter import Batch

_SECONDS = 10.0
"""The time, in seconds, for one statement."""
_START_SECONDS = 60.0
"""The time, in seconds, for the process to start, which takes 2 seconds on an idle machine."""


@dataclass(frozen=True)
class TraceRequest:
    """A statement, with all that its trace needs from the host.

    Attributes:
        levels, are_names_case_sensitive: see `SessionOptions`.
        functions: the functions that users registered; they are not called.
        batches: the rules in force, including those of users.
    """

    text: str
    levels: Mapping[Level, Mapping[str, ValueText]]
    functions: tuple[PythonFunction, ...]
    batches: tuple[Batch, ...]
    are_names_case_sensitive: bool = False


class Tracer:
    """The process that traces, started at the first statement. Any thread may call any method; statements take turns.

    Args:
        seconds: the time, in seconds, that a statement may take.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._helper = HelperProcess(["-P", "-m", "sqlext.page.trace_process"], _START_SECONDS, "The statement cannot be traced")

    def trace(self, text: str, session: SessionOptions) -> Trace:
        """Trace a statement; if it exceeds a limit, the trace has that error."""
        if len(text) > MOST_CHARACTERS:
            return Trace(text[:MOST_CHARACTERS], error=too_long(text))
        try:
            line = _request(text, session)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            return Trace(text, error=f"A registered rule cannot be sent to the process that traces: {error}.")
        with self._lock:
            try:
                return self._traced(line, session)
            except WaitTimeoutError:
                return Trace(text, error=f"The statement cannot be traced within {self._seconds:.0f} s. Trace a part of it.")
            except SqlextError as error:
                return Trace(text, error=error.message)

    def close(self) -> None:
        """End the process, even while it traces."""
        self._helper.stop()
        with self._lock:
            self._helper.close()

    def _traced(self, line: bytes, session: SessionOptions) -> Trace:
        """Send a request, and parse durations for the process until it sends the trace."""
        self._helper.ask(b"")  # it may have to start
        deadline = Deadline(self._seconds)
        while True:
            answer = json.loads(self._helper.ask_once(line, deadline.left))
            if "trace" in answer:
                found = pickle.loads(base64.b64decode(answer["trace"]))  # noqa: S301  # written by our own process
                assert isinstance(found, Trace)
                return found
            line = json.dumps(_duration(answer["duration"], session)).encode()


def _request(text: str, session: SessionOptions) -> bytes:
    functions = tuple(replace(each, function=_not_called) for each in FUNCTIONS)
    request = TraceRequest(text, session.levels, functions, rules_in_force(), session.are_names_case_sensitive)
    return base64.b64encode(cloudpickle.dumps(request))  # type: ignore[no-untyped-call]  # a rule may be defined in the main program


def _not_called(*_: object) -> None:
    """Stand in for a user's function: a trace needs only its registration."""


def _duration(text: str, session: SessionOptions) -> dict[str, Any]:
    try:
        return {"microseconds": session.parse_duration(text) // timedelta(microseconds=1)}
    except ValueError as error:
        return {"error": str(error)}
