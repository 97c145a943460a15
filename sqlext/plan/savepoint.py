"""The record of a savepoint: what a flow and its table were like when it was made, as one JSON text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlext.errors import FlowError
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.records import from_record, to_record

SAVEPOINT_VERSION = 1


@dataclass(frozen=True)
class Savepoint:
    """A savepoint of a flow.

    Attributes:
        id: the name of its folder.
        name: its name for users; those of one flow differ by more than case.
        at: when it was made, in ISO 8601.
        spec: the flow as it was.
        target_version: the version of the target that it has a copy of.
        committed: the last micro-batch in that version, as the version of the flow's transaction; -1: there was none.
        metadata: Delta's metadata of the target in that version, as JSON: columns, properties, comment.
        positions: how far the flow had read each of its sources, for people.
        read: the same as the target's last commit has it (`CommitInfo.read`), for tables that are made of this one.
        bytes: the size of all its files.
        files: the size of each file with rows, by folder and name.
    """

    id: str
    name: str
    at: str
    spec: FlowSpec
    target_version: int
    committed: int
    metadata: str
    positions: tuple[str, ...] = ()
    read: Mapping[str, Any] = field(default_factory=dict)
    bytes: int = 0
    files: Mapping[str, int] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """When it was made."""
        return datetime.fromisoformat(self.at)

    def to_json(self) -> str:
        """Return the record as JSON text."""
        return to_record({**asdict(self), "spec": self.spec.to_json()}, SAVEPOINT_VERSION)

    @classmethod
    def from_json(cls, text: str) -> Savepoint:
        """Read a record.

        Raises:
            FlowError: the record is torn, or another version of sqlext wrote it.
        """
        return from_record(text, "savepoint", SAVEPOINT_VERSION, _made, FlowError)


def _made(data: dict[str, Any]) -> Savepoint:
    return Savepoint(**{**data, "spec": FlowSpec.from_json(data["spec"]), "positions": tuple(data["positions"])})
