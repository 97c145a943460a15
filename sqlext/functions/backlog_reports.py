"""User functions that report whether a stream is processing a backlog (FLIP-309's setIsProcessingBacklog)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sqlext.errors import SchemaError

BacklogReport = Callable[[], bool]
_lock = threading.Lock()  # guards _reports, which is replaced whole
_reports: dict[str, BacklogReport] = {}


def register_backlog_report(stream: str, function: BacklogReport | None) -> None:
    """Register a function that reports whether a stream is processing a backlog; its latest result alone decides.

    The function is called about once a second, in the process that runs the flow, and should be quick. It affects flows whose
    `execution.checkpointing.interval-during-backlog` is set.

    Args:
        stream: the table or view, by its name in the queries that stream it.
        function: a function without arguments that returns isProcessingBacklog; None removes the one registered before.

    Raises:
        SchemaError: the function cannot be called.
    """
    global _reports
    if function is not None and not callable(function):
        raise SchemaError(f"{function!r} is not a function. A backlog report takes no arguments and returns True or False.")
    with _lock:
        others = {name: each for name, each in _reports.items() if name != stream.lower()}
        _reports = others if function is None else {**others, stream.lower(): function}


def backlog_report(name: Sequence[str]) -> BacklogReport | None:
    """Return the function registered for a relation, under its name as written or the last part of it."""
    full = ".".join(name).lower()
    return _reports.get(full) or _reports.get(full.rpartition(".")[2])
