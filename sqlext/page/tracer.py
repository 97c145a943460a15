"""Traces the statements that somebody sends to the page, in a process of its own whose time and memory are limited.

The process gets a request a line, and answers with a trace; or with a duration to be read, since Spark's parsers are here.
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
"""For one statement."""
_START_SECONDS = 60.0
"""For the process to start: it takes two, on a machine with little else to do."""


@dataclass(frozen=True)
class TraceRequest:
    """A statement, and what the host of flows knows that matters to it.

    Attributes:
        levels, are_names_case_sensitive: as `SessionOptions` has them.
        functions: those that users registered; they are not called.
        batches: the rules in force, with those of users.
    """

    text: str
    levels: Mapping[Level, Mapping[str, ValueText]]
    functions: tuple[PythonFunction, ...]
    batches: tuple[Batch, ...]
    are_names_case_sensitive: bool = False


class Tracer:
    """The process that traces, started at the first statement. Any thread may call any method; statements take turns.

    Args:
        seconds: that a statement may take.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._helper = HelperProcess(["-P", "-m", "sqlext.page.trace_process"], _START_SECONDS, "The statement cannot be traced")

    def trace(self, text: str, session: SessionOptions) -> Trace:
        """Trace a statement; a limit that it reaches is the trace's error."""
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
        """End the process, also while it traces."""
        self._helper.stop()
        with self._lock:
            self._helper.close()

    def _traced(self, line: bytes, session: SessionOptions) -> Trace:
        """Send a request, and read durations for the process until it sends the trace."""
        self._helper.ask(b"")  # it may have to start
        deadline = Deadline(self._seconds)
        while True:
            answer = json.loads(self._helper.ask_once(line, deadline.left))
            if "trace" in answer:
                found = pickle.loads(base64.b64decode(answer["trace"]))  # noqa: S301  # a process of ours has written it
                assert isinstance(found, Trace)
                return found
            line = json.dumps(_duration(answer["duration"], session)).encode()


def _request(text: str, session: SessionOptions) -> bytes:
    functions = tuple(replace(each, function=_not_called) for each in FUNCTIONS)
    request = TraceRequest(text, session.levels, functions, rules_in_force(), session.are_names_case_sensitive)
    return base64.b64encode(cloudpickle.dumps(request))  # type: ignore[no-untyped-call]  # a rule may be one of the main program's


def _not_called(*_: object) -> None:
    """In the place of a user's function, of which a trace needs no more than what it was registered with."""


def _duration(text: str, session: SessionOptions) -> dict[str, Any]:
    try:
        return {"microseconds": session.parse_duration(text) // timedelta(microseconds=1)}
    except ValueError as error:
        return {"error": str(error)}
