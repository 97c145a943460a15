"""The statements about savepoints, as values."""

from __future__ import annotations

from dataclasses import dataclass

from sqlext.errors import Position


@dataclass(frozen=True)
class MakeSavepoint:
    """SAVEPOINT FLOW flow [AS name]; without a name, one is made of the time."""

    flow: tuple[str, ...]
    name: str = ""
    position: Position | None = None


@dataclass(frozen=True)
class RestoreFlow:
    """RESTORE FLOW flow TO [SAVEPOINT] name, which sets a flow and its table back."""

    flow: tuple[str, ...]
    name: str
    position: Position | None = None


@dataclass(frozen=True)
class DropSavepoint:
    """DROP SAVEPOINT [IF EXISTS] name ON FLOW flow."""

    flow: tuple[str, ...]
    name: str
    if_exists: bool = False
    position: Position | None = None


@dataclass(frozen=True)
class ShowSavepoints:
    """SHOW SAVEPOINTS [OF flow]; without a name, of all flows."""

    flow: tuple[str, ...] = ()


SavepointStatement = MakeSavepoint | RestoreFlow | DropSavepoint | ShowSavepoints
