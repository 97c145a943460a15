"""AUTO CDC as a value: which changes of a database's rows a stream brings, and how they are applied to a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlext.errors import Position


@dataclass(frozen=True)
class Fragment:
    """A part of a statement, such as a condition or a column's name.

    Attributes:
        text: of an expression, as written; of a name, without backticks.
        position: its place in the statement.
    """

    text: str
    position: Position


@dataclass(frozen=True)
class ColumnChoice:
    """Some columns of the source, or all but some.

    Attributes:
        names: the columns that are named.
        is_except: whether they are those that are left out.
    """

    names: tuple[Fragment, ...] = ()
    is_except: bool = True


@dataclass(frozen=True)
class ChangeCapture:
    """What stands behind AUTO CDC [INTO t].

    Attributes:
        source: FROM and the stream of changes, as written.
        keys: the columns that tell one row of the table from another.
        sequence: the expression by which changes of one key are ordered.
        delete_when: the condition that a change deletes its key; None: no change does.
        truncate_when: the condition that a change deletes all keys; None: no change does.
        columns: those of the table.
        ignores_nulls: whether NULL in a change leaves a column as it was.
        keeps_history: whether the table has a row for each version of a key (SCD type 2) and not only the newest (type 1).
        tracked: of a table with history, the columns whose changes begin a new version.
        position: the place of the words AUTO CDC.
    """

    source: Fragment
    keys: tuple[Fragment, ...]
    sequence: Fragment
    position: Position
    delete_when: Fragment | None = None
    truncate_when: Fragment | None = None
    columns: ColumnChoice = ColumnChoice()
    ignores_nulls: bool = False
    keeps_history: bool = False
    tracked: ColumnChoice = ColumnChoice()

    @property
    def expressions(self) -> Sequence[Fragment]:
        """The expressions over the columns of the source."""
        return [each for each in (self.delete_when, self.truncate_when, self.sequence) if each is not None]
