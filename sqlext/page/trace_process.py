"""The process that traces statements (`tracer.py`): a request a line in, a trace a line out, within limits of memory.

Between a request and its trace it may ask for durations: `{"duration": text}`, answered by `{"microseconds": n}` or
`{"error": text}`.
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
"""Without a request for so long, the process ends and gives its memory back; the next request starts another."""
_MOST_BYTES = 1024**3
"""Of memory, code and libraries included: a third of it is those."""


def traced(request: TraceRequest) -> Trace:
    """The trace of a request, by the rules and functions that came with it."""
    rule_book._batches = request.batches  # noqa: SLF001  # what this process stands in for has them so
    for function in request.functions:
        FUNCTIONS.add(function)
    try:
        return trace(request.text, SessionOptions(request.levels, _duration, request.are_names_case_sensitive))
    except MemoryError:
        return Trace(
            request.text, error=f"The statement cannot be traced within {_MOST_BYTES // 1024**2} MB. Trace a part of it."
        )
    except Exception as error:  # noqa: BLE001  # a bug of ours, or of a rule
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
    """Answer requests until the standard input ends, which it does when the asking process has; or until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    signal.alarm(_IDLE_SECONDS)
    while line := sys.stdin.readline():
        signal.alarm(0)
        if not line.strip():
            _write({})
        else:
            found = traced(pickle.loads(base64.b64decode(line)))  # noqa: S301  # the process that started this one has written it
            _write({"trace": base64.b64encode(pickle.dumps(found)).decode()})
        signal.alarm(_IDLE_SECONDS)


if __name__ == "__main__":
    main()
