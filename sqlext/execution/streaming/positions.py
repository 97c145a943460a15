"""How far a stream has read a Delta table, from the offsets in Spark's checkpoint.

Relies on a private format: Delta's DeltaSourceOffset, in its versions 1 and 3.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeltaOffset:
    """The end of what was read: the files of a version up to an index.

    Attributes:
        table_id: Delta's id of the table.
        version: the version.
        index: of the last file that was read; below 0: none of the version's.
        is_starting: whether the version is the table's content when the stream began, not a commit.
    """

    table_id: str
    version: int
    index: int
    is_starting: bool

    @classmethod
    def parse(cls, text: str) -> DeltaOffset:
        """Read an offset."""
        data: dict[str, Any] = json.loads(text)
        is_starting = bool(data.get("isStartingVersion", data.get("isInitialSnapshot", False)))
        return cls(str(data.get("reservoirId", "")), int(data["reservoirVersion"]), int(data["index"]), is_starting)

    @property
    def whole_version(self) -> int | None:
        """The version whose content is what was read; None: only a part of one was."""
        return None if self.is_starting or self.index >= 0 else self.version - 1
