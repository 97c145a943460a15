"""Functions of the user's that say whether a stream is working off a backlog (FLIP-309's setIsProcessingBacklog)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sqlext.errors import SchemaError

BacklogReport = Callable[[], bool]
_lock = threading.Lock()  # guards _reports, which is replaced whole
_reports: dict[str, BacklogReport] = {}


def register_backlog_report(stream: str, function: BacklogReport | None) -> None:
    """Say by a function whether a stream is working off a backlog; what it says last counts, and nothing else does.

    It is asked about once a second and at the end of each micro-batch, in the process that runs the flow, and must be quick. It
    counts for flows whose `execution.checkpointing.interval-during-backlog` is set.

    Args:
        stream: the table or view, as the queries that stream it call it.
        function: takes nothing, returns isProcessingBacklog; None: the function registered before no longer counts.

    Raises:
        SchemaError: it cannot be called.
    """
    global _reports
    if function is not None and not callable(function):
        raise SchemaError(f"{function!r} is no function. A backlog report takes nothing and returns True or False.")
    with _lock:
        others = {name: each for name, each in _reports.items() if name != stream.lower()}
        _reports = others if function is None else {**others, stream.lower(): function}


def backlog_report(name: Sequence[str]) -> BacklogReport | None:
    """The function for a relation, by its name as written, or by the last part of it."""
    full = ".".join(name).lower()
    return _reports.get(full) or _reports.get(full.rpartition(".")[2])
