"""Runs statements about materialized views over a warehouse, and dies by kill -9, with its JVM, at a moment of one of the views.

    python -m tests.faults.views_killed_at LIFE

where LIFE is a file with a `Life` as JSON. A moment is a method, and whether the process dies before or behind it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sqlext.app.embedded import embedded_session
from sqlext.execution.delta import transaction
from sqlext.execution.views import cost, making, refresh, writing
from sqlext.execution.views.live import LiveView
from sqlext.extension.session import host_of
from sqlext.moments import listened
from tests.faults.killed_at import die
from tests.support import eventually

DEADLINE = 240.0


class ViewMoment(StrEnum):
    """A moment in the life of a view, after its name has become true and before anything follows."""

    RESERVED = "reserved"
    """CREATE has reserved the name, and there is no table."""
    TABLE_MADE = "table made"
    """CREATE has made a new table, and it is empty."""
    NOT_RECORDED = "not recorded"
    """CREATE has committed the rows, and the registry does not know it."""
    BEGUN = "begun"
    """A refresh knows the versions of the sources, and has read nothing of their changes."""
    COMPUTED = "computed"
    """An incremental refresh has computed its rows, and written nothing."""
    WRITTEN = "written"
    """The data files and deletion vectors of a refresh are written, and no version names them."""
    PARTIALS = "partials committed"
    """The partial results beside the view have a refresh, the view has it not."""
    COMMITTED = "committed"
    """A refresh is committed, and its process does not know it."""
    NO_STATUS = "no status"
    """A refresh is committed, and its status is not written."""


@dataclass(frozen=True)
class Life:
    """What a process does until it dies, or ends.

    Attributes:
        warehouse: the folder.
        conf: Spark's settings.
        statements: what it runs, in order; then it waits for the moment.
        view, moment: where it dies. No view: it does not, but waits until no view is behind its sources.
        is_made: whether it dies while the view is being made, rather than refreshed.
        seconds: how long after the moment.
        result: the file in which it writes what there is, if it does not die.
    """

    warehouse: str
    conf: Mapping[str, str]
    statements: list[str]
    view: str = ""
    moment: str = ""
    is_made: bool = False
    seconds: float = 0.0
    result: str = ""


@dataclass
class Killer:
    """Kills the process when the moment has come."""

    life: Life
    here: threading.local = field(default_factory=threading.local)
    is_over: bool = False

    def reach(self, moment: ViewMoment) -> None:
        at = (getattr(self.here, "view", ""), moment.value, getattr(self.here, "is_made", False))
        if self.is_over or at != (self.life.view, self.life.moment, self.life.is_made):
            return
        self.is_over = True
        if self.life.seconds:
            threading.Timer(self.life.seconds, die).start()
        else:
            die()

    def install(self) -> None:
        """Have the methods announce their moments."""
        around(making.ViewMaker, "_compute", before=self._make_begins, after=self._make_ends)
        around(making, "with_table", after=lambda: self.reach(ViewMoment.TABLE_MADE))
        around(making.ViewMaker, "_created", before=lambda *_: self.reach(ViewMoment.NOT_RECORDED))
        around(LiveView, "_refresh", before=self._refresh_begins)
        around(LiveView, "_note_success", before=lambda *_: self.reach(ViewMoment.NO_STATUS))
        around(refresh._OneRefresh, "run", before=lambda *_: self.reach(ViewMoment.BEGUN))
        around(writing.ViewTable, "_replace", before=lambda *_: self.reach(ViewMoment.COMPUTED))
        written, committed = ViewMoment.WRITTEN, ViewMoment.COMMITTED
        around(transaction, "commit_actions", lambda *_: self.reach(written), lambda: self.reach(committed))

    def _make_begins(self, _: Any, request: Any, *__: Any) -> None:
        self.here.is_made, self.here.view = True, request.name[-1]
        self.reach(ViewMoment.RESERVED)

    def _make_ends(self) -> None:
        self.here.is_made = False

    def _refresh_begins(self, live: LiveView, *_: Any) -> None:
        self.here.view = live.spec.name[-1]


def around(
    owner: Any, name: str, before: Callable[..., None] = lambda *_: None, after: Callable[[], None] = lambda: None
) -> None:
    """Call something before and behind each call of a function."""
    function = getattr(owner, name)

    def wrapper(*arguments: Any, **named: Any) -> Any:
        before(*arguments)
        found = function(*arguments, **named)
        after()
        return found

    setattr(owner, name, wrapper)


def live(life: Life) -> None:
    """Run the statements, and then wait: for death, or until all views are up to date."""
    killer = Killer(life)
    killer.install()
    cost.PARTIALS_BYTES = 0  # of whatever size the sources are
    with listened(lambda *_: killer.reach(ViewMoment.PARTIALS)), embedded_session(Path(life.warehouse), life.conf) as spark:
        host_of(spark).views.resume()  # as `sqlext run` does
        swept = tables(spark)
        for statement in life.statements:
            began = time.monotonic()
            rows = spark.sql(statement).collect()
            print(f"{time.monotonic() - began:.1f} s: {statement} -> {rows[:1]}", flush=True)
        if life.view:
            time.sleep(DEADLINE)
            return
        eventually(lambda: all(row.behind is False for row in shown(spark)), DEADLINE, lambda: f"behind: {shown(spark)}")
        views = {row.name: row.asDict() for row in shown(spark)}
        Path(life.result).write_text(json.dumps({"swept": swept, "tables": tables(spark), "views": views}, default=str))


def tables(spark: SparkSession) -> list[str]:
    return [row.tableName for row in spark.sql("SHOW TABLES").collect()]


def shown(spark: SparkSession) -> list[Any]:
    return spark.sql("SHOW MATERIALIZED VIEWS").collect()


if __name__ == "__main__":
    live(Life(**json.loads(Path(sys.argv[1]).read_text())))
