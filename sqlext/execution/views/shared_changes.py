"""The changes of tables, read once for all views that are refreshed over the same two versions, with settings that mean the same.

A wave of refreshes follows each change of a table that many views read. The first of them reads the changes with the columns that
any view of the process uses; the executors hold them for those that come soon after.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from sqlext.clock import Clock
from sqlext.errors import UnsupportedError
from sqlext.execution.delta.changes import WEIGHT, changes, check_same_columns
from sqlext.execution.views.kept import fill
from sqlext.plan.view_spec import SourceVersion

logger = logging.getLogger(__name__)

_KEEP_SECONDS = 10.0
_MOST_ROWS = 1_000_000
"""The most rows that are held while nobody reads them."""
Meaning = frozenset[tuple[str, str]]
"""Settings that change what a query means, as `settings.meaning_of` returns them."""


@dataclass(eq=False)
class Changes:
    """The changes of a table between two versions.

    Attributes:
        columns: the columns of the rows, without the weight.
        rows: the rows with their weights, on the executors; None: they have not been read yet.
        number: how many they are.
        may_cancel: whether some came and some went, so that without some of their columns, rows may cancel each other out.
        users: how many refreshes use them. Guarded by the lock of `SharedChanges`.
        idle_since: when the last one gave them back.
        lock: guards the reading of the rows: one refresh does it, others wait.
    """

    columns: tuple[str, ...] = ()
    rows: DataFrame | None = None
    number: int = 0
    may_cancel: bool = True
    users: int = 0
    idle_since: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class SharedChanges:
    """The changes that are held for the views of this process. Any thread may call any method.

    The lock guards which changes there are, and who reads which tables; it is never held while Spark works.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._columns: dict[str, Mapping[str, Sequence[str]]] = {}  # of each table, by location, that a view uses; by view
        self._held: dict[tuple[str, str, int, int, Meaning], Changes] = {}

    def note(self, view_id: str, columns: Mapping[str, Sequence[str]]) -> None:
        """Note which columns of which tables, by location, a view uses."""
        with self._lock:
            self._columns[view_id] = columns

    def forget(self, view_id: str) -> None:
        """Forget a view that is gone."""
        with self._lock:
            self._columns.pop(view_id, None)

    def take(
        self,
        spark: SparkSession,
        before: SourceVersion,
        after: SourceVersion,
        columns: Sequence[str],
        meaning: Meaning = frozenset(),
    ) -> Changes:
        """Return the changes of a table, to be given back.

        Args:
            spark: the session that reads them, if they have not been read yet.
            before, after: two versions of one table. Its id counts, too: a table that is created anew may have the others.
            columns: those that are needed; there may be more.
            meaning: the settings of the session that change what it reads: a time in the name of a partition has a time zone.

        Raises:
            UnsupportedError: they cannot be read.
        """
        location, versions = after.location, (before.version, after.version)
        check_same_columns(spark, location, *versions, columns)
        key = (location, after.id, *versions, meaning)
        with self._lock:
            found = self._held.setdefault(key, Changes())
            found.users += 1
            wanted = tuple(
                dict.fromkeys((*columns, *(name for each in self._columns.values() for name in each.get(location, ()))))
            )
        try:
            with found.lock:
                if found.rows is None:
                    self._read(found, spark, location, versions, self._same(spark, location, versions, wanted, columns))
        except BaseException:
            self.give_back(found)
            raise
        if set(columns) <= set(found.columns):
            return found
        self.give_back(found)
        own = Changes(users=1)  # they were read without columns that this view uses, such as a new one
        self._read(own, spark, location, versions, tuple(columns))
        return own

    def give_back(self, found: Changes) -> None:
        """Say that changes are no longer used by who has taken them."""
        with self._lock:
            found.users -= 1
            found.idle_since = self._clock.monotonic()
            key = next((key for key, each in self._held.items() if each is found), None)
            is_shared = key is not None and sum(key[0] in each for each in self._columns.values()) > 1
            if found.users > 0 or (is_shared and found.number <= _MOST_ROWS):
                return
            if key is not None:
                del self._held[key]
        _free(found)

    def free_idle(self, is_all: bool = False) -> None:
        """Free what nobody has used for some seconds; for the host's ticker.

        Args:
            is_all: whether the process ends, and everything is freed that is not in use.
        """
        before = self._clock.monotonic() - (0 if is_all else _KEEP_SECONDS)
        with self._lock:
            idle = [key for key, each in self._held.items() if each.users == 0 and each.idle_since <= before]
            freed = [self._held.pop(key) for key in idle]
        for each in freed:
            _free(each)

    @staticmethod
    def _same(
        spark: SparkSession, location: str, versions: tuple[int, int], wanted: tuple[str, ...], columns: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the columns to read: all that are wanted, if they are the same in both versions."""
        if set(wanted) == set(columns):  # which are checked
            return wanted
        try:
            check_same_columns(spark, location, *versions, wanted)
        except UnsupportedError:
            return tuple(columns)
        return wanted

    @staticmethod
    def _read(found: Changes, spark: SparkSession, location: str, versions: tuple[int, int], columns: tuple[str, ...]) -> None:
        rows = changes(spark, location, *versions, columns).persist()
        try:
            found.number, least, greatest = fill(rows, f"min({WEIGHT})", f"max({WEIGHT})")
        except BaseException:
            rows.unpersist()
            raise
        found.may_cancel = found.number > 0 and least < 0 < greatest
        found.rows, found.columns = rows, columns


def _free(found: Changes) -> None:
    if found.rows is not None:
        found.rows.unpersist()
