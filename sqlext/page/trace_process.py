"""The process that traces statements (`tracer.py`): one request per line in, one trace per line out, within a limit of memory.

Between a request and its trace, the process may send durations to parse: `{"duration": text}`, answered by
`{"microseconds": n}` or `{"error": text}`.
"""

from __future__ import annotations

import base64
import json
import pickle
import resource
import signal
import sys
from datetime import timedelta
from typing import Any

from sqlext.functions.scalar import FUNCTIONS
from sqlext.page.snapshot import Trace
from sqlext.page.trace import SessionOptions, trace
from sqlext.page.tracer import TraceRequest
from sqlext.planner import rule_book

_IDLE_SECONDS = 600
"""The idle time, in seconds, after which the process ends and frees its memory; the next request starts another one."""
_MOST_BYTES = 1024**3
"""The limit of memory, with code and libraries, which take a third of it."""


def traced(request: TraceRequest) -> Trace:
    """Trace the statement of a request, with the rules and functions of the request."""
    rule_book._batches = request.batches  # noqa: SLF001  # the requesting process has these rules
    for function in request.functions:
        FUNCTIONS.add(function)
    try:
        return trace(request.text, SessionOptions(request.levels, _duration, request.are_names_case_sensitive))
    except MemoryError:
        return Trace(
            request.text, error=f"The statement cannot be traced within {_MOST_BYTES // 1024**2} MB. Trace a part of it."
        )
    except Exception as error:  # noqa: BLE001  # a bug of sqlext's or of a rule
        return Trace(request.text, error=f"The statement cannot be traced ({type(error).__name__}: {error}).")


def _duration(text: str) -> timedelta:
    _write({"duration": text})
    answer = json.loads(sys.stdin.readline())
    if "error" in answer:
        raise ValueError(answer["error"])
    return timedelta(microseconds=answer["microseconds"])


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer requests until standard input ends, as it does when the requesting process ends, or until the idle time is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the requesting process
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    signal.alarm(_IDLE_SECONDS)
    while line := sys.stdin.readline():
        signal.alarm(0)
        if not line.strip():
            _write({})
        else:
            found = traced(pickle.loads(base64.b64decode(line)))  # noqa: S301  # written by the process that started this one
            _write({"trace": base64.b64encode(pickle.dumps(found)).decode()})
        signal.alarm(_IDLE_SECONDS)


if __name__ == "__main__":
    main()
