"""The last flushes of a flow, from the metadata of its commits in the target's Delta log."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlext.errors import NotFoundError, SetupError
from sqlext.execution.coordination.event_log import Folder
from sqlext.page.snapshot import FlushView

SHOWN = 60
"""The number of flushes kept."""
_LOOKS_PER_FLUSH = 3
"""The most commits read for each flush: between flushes, others may write, and compactions run."""
_CHANGES = (
    ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),  # a MERGE
    ("numOutputRows",),  # an append, or all rows replaced
)


class FlushLog:
    """The reader of a flow's flushes: it reads the newest commits once, and later only new ones. Not thread-safe.

    Args:
        table: the target's folder.
        flow_id: the flow, whose commits alone count.
    """

    def __init__(self, table: Folder, flow_id: str) -> None:
        self._log = table.child("_delta_log")
        self._flow_id = flow_id
        self._next: int | None = None
        self._found: deque[FlushView] = deque(maxlen=SHOWN)

    def read(self) -> tuple[FlushView, ...]:
        """Return the last flushes, oldest first.

        Raises:
            SetupError: the log cannot be read.
        """
        if self._next is None:
            self._next = self._after_newest()
            earliest = max(self._next - SHOWN * _LOOKS_PER_FLUSH, 0)
            for version in range(self._next - 1, earliest - 1, -1):
                if (flush := self._flush(version)) is not None:
                    self._found.appendleft(flush)
                if len(self._found) == SHOWN:
                    break
        while self._file(self._next).exists():
            if (flush := self._flush(self._next)) is not None:
                self._found.append(flush)
            self._next += 1
        return tuple(self._found)

    def _after_newest(self) -> int:
        """Return the first version that does not exist. Every tenth commit writes a checkpoint, so few files are checked."""
        try:
            version = int(json.loads(self._log.child("_last_checkpoint").read_text())["version"]) + 1
        except (NotFoundError, SetupError, ValueError, KeyError, TypeError):
            version = 0
        while self._file(version).exists():
            version += 1
        return version

    def _flush(self, version: int) -> FlushView | None:
        try:
            lines = self._file(version).read_text().splitlines()
        except NotFoundError:  # cleaned up
            return None
        info = next((line for line in lines if line.startswith('{"commitInfo"')), None)
        return None if info is None else flush_of(version, json.loads(info)["commitInfo"], self._flow_id)

    def _file(self, version: int) -> Folder:
        return self._log.child(f"{version:020d}.json")


def flush_of(version: int, info: Mapping[str, Any], flow_id: str) -> FlushView | None:
    """Return the flush that made a commit; None if the commit is no flush of this flow."""
    try:
        said = json.loads(info["userMetadata"])["sqlext"]
        if said["flow_id"] != flow_id:
            return None
        at = datetime.fromtimestamp(int(info["timestamp"]) / 1000, UTC)
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
        )
    except (ValueError, KeyError, TypeError):  # the metadata is not sqlext's
        return None


def _changed(metrics: Mapping[str, Any]) -> int | None:
    for keys in _CHANGES:
        if any(key in metrics for key in keys):
            return sum(int(metrics.get(key, 0)) for key in keys)
    return None
