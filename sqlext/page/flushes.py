"""The last flushes of a flow, from the metadata of its commits in the target's Delta log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from sqlext.execution.coordination.event_log import Folder
from sqlext.page.commits import CommitLog, LastCommits, time_of
from sqlext.page.snapshot import FlushView

_CHANGES = (
    ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),  # a MERGE
    ("numOutputRows",),  # an append, or all rows replaced
)


class FlushLog(LastCommits[FlushView]):
    """The reader of a flow's flushes. Not thread-safe.

    Args:
        table: the target's folder.
        flow_id: the flow, whose commits alone count.
    """

    def __init__(self, table: Folder, flow_id: str) -> None:
        super().__init__(CommitLog(table), partial(flush_of, flow_id))


def flush_of(flow_id: str, version: int, info: Mapping[str, Any]) -> FlushView | None:
    """Return the flush that made a commit; None if the commit is no flush of this flow."""
    try:
        said = json.loads(info["userMetadata"])["sqlext"]
        if said["flow_id"] != flow_id:
            return None
        at = time_of(info)
        arrival = datetime.fromisoformat(said["oldest_arrival"]) if said.get("oldest_arrival") else None
        metrics = info.get("operationMetrics") or {}
        return FlushView(
            version=version,
            at=at,
            reason=str(said["reason"]),
            first_batch=int(said["first_batch"]),
            last_batch=int(said["last_batch"]),
            epoch=int(said["epoch"]),
            buffered=int(said["rows"]) if int(said["rows"]) >= 0 else None,
            changed=_changed(metrics),
            seconds=int(metrics["executionTimeMs"]) / 1000 if "executionTimeMs" in metrics else None,
            waited=at - arrival if arrival is not None else None,
            violations={str(name): int(rows) for name, rows in said["violations"].items()} if "violations" in said else None,
        )
    except (AttributeError, ValueError, KeyError, TypeError):  # the metadata is not sqlext's
        return None


def _changed(metrics: Mapping[str, Any]) -> int | None:
    for keys in _CHANGES:
        if any(key in metrics for key in keys):
            return sum(int(metrics.get(key, 0)) for key in keys)
    return None
