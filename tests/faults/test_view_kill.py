"""kill -9 in refreshes of materialized views: each version equals its query over the versions it names, none is made twice.

Five views are kept over two tables that change in every way, over one warehouse: four refreshed by statements, each in another
way, one of them of partial results beside it, and one by itself. The process dies at each of the moments of a refresh, of a
refresh in full, of one by itself, of CREATE and of CREATE OR REPLACE, or at any time after one. By hand, at all of them:
`python -m pytest tests/faults/test_view_kill.py --kills 33`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqlext.plan.view_spec import VIEW_PROPERTY
from tests.faults.views_killed_at import Life, ViewMoment
from tests.java import java_options

DEADLINE = 600.0
IN_CI = 2
"""Kills where `--kills` does not ask for more."""
KEYS = 12
QUERIES = {
    "merged": "SELECT g, count(*) AS n, sum(x) AS s, count(x) AS c FROM {items} GROUP BY g",
    "touched": "SELECT g, avg(x) AS a, max(x) AS m, count(DISTINCT x) AS d FROM {items} GROUP BY g",
    "averaged": "SELECT g, avg(x) AS a, sum(x) * 2 AS s, max(x) AS m FROM {items} GROUP BY g HAVING count(*) > 1",
    "joined": "SELECT i.g, i.x % 3 AS r, d.w FROM {items} AS i LEFT JOIN {dims} AS d ON i.g = d.g",
    "by_itself": "SELECT d.w, count(*) AS n, sum(i.x) AS s, count(i.x) AS c "
    "FROM {items} AS i JOIN {dims} AS d ON i.g = d.g GROUP BY d.w",
    "made": "SELECT g, max(x) AS m FROM {items} GROUP BY g",
}
SOURCES = ("items", "dims")
ONE_COMMIT = ("merged", "touched", "joined")
BY_HAND = (*ONE_COMMIT, "averaged")
SCHEDULES = {"by_itself": "TRIGGER ON UPDATE AT MOST EVERY 1 SECOND"}
WAYS = {
    "merged": "merge groups",
    "touched": "touched groups",
    "averaged": "touched groups",  # it has a maximum
    "joined": "changed rows",
    "by_itself": "merge groups",
}
"""What a refresh of each is that finds changes of all kinds."""
REPLACEMENT = "SELECT d.w, count(*) AS n FROM {items} AS i JOIN {dims} AS d ON i.g = d.g GROUP BY d.w"


def create(name: str, query: str = "", replace: str = "") -> str:
    text = (query or QUERIES[name]).format(items="items", dims="dims")
    return f"CREATE {replace} MATERIALIZED VIEW {name} {SCHEDULES.get(name, '')} REFRESH POLICY INCREMENTAL AS {text}"


SET_UP = [
    "CREATE TABLE items (id INT, g INT, x INT) USING delta",
    "CREATE TABLE dims (g INT, w STRING) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    f"INSERT INTO items SELECT id, id % {KEYS}, IF(id % 9 = 0, NULL, id % 50) FROM range(300)",
    f"INSERT INTO dims SELECT id, concat('w', id % 4) FROM range({KEYS})",
    *(create(name) for name in QUERIES if name != "made"),
]


@dataclass(frozen=True)
class Kill:
    """When the process dies: at a moment of a view, or so many seconds after it.

    Attributes:
        doing: what is being done to the view: `refresh`, `full`, `by itself`, `create` or `replace`.
    """

    doing: str
    view: str
    moment: ViewMoment
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.doing}: {self.moment.value}{' + some seconds' if self.seconds else ''}"

    @property
    def is_made(self) -> bool:
        return self.doing in ("create", "replace")

    @property
    def commits(self) -> bool | None:
        """Whether the refresh is in the view's log; None: that depends on the time."""
        if self.seconds:
            return None
        return not self.is_made and self.moment in (ViewMoment.COMMITTED, ViewMoment.NO_STATUS)


_REFRESH = (ViewMoment.BEGUN, ViewMoment.COMPUTED, ViewMoment.WRITTEN, ViewMoment.COMMITTED)
_CREATE = (ViewMoment.RESERVED, ViewMoment.TABLE_MADE, ViewMoment.WRITTEN, ViewMoment.NOT_RECORDED)


def all_kills() -> list[Kill]:
    """Each moment, in an order in which what is done takes turns."""
    by_kind = [
        *([Kill("refresh", view, moment) for moment in _REFRESH] for view in ONE_COMMIT),
        [
            Kill("refresh", "averaged", ViewMoment.PARTIALS),
            Kill("full", "averaged", ViewMoment.PARTIALS),
            Kill("refresh", "averaged", ViewMoment.NO_STATUS),
        ],
        [Kill("create", "made", moment) for moment in _CREATE],
        [Kill("by itself", "by_itself", moment) for moment in _REFRESH],
        [
            Kill("full", ONE_COMMIT[at], moment)
            for at, moment in enumerate((ViewMoment.BEGUN, ViewMoment.WRITTEN, ViewMoment.COMMITTED))
        ],
        [Kill("replace", "joined", moment) for moment in (ViewMoment.WRITTEN, ViewMoment.NOT_RECORDED)],
        [Kill("refresh", view, ViewMoment.BEGUN, random.uniform(0.3, 4.0)) for view in BY_HAND],
        [
            Kill("by itself", "by_itself", ViewMoment.BEGUN, random.uniform(0.3, 4.0)),
            Kill("refresh", "merged", ViewMoment.NO_STATUS),
        ],
    ]
    return [kills[at] for at in range(max(map(len, by_kind))) for kills in by_kind if at < len(kills)]


def chosen(kills: int) -> list[Kill]:
    """Any of them where they are few; else all, and all again."""
    found: list[Kill] = []
    while len(found) < kills:
        every = all_kills()
        found += random.sample(every, kills) if kills < len(every) else every
    return found[:kills]


@dataclass(frozen=True)
class Refresh:
    """A commit of a view's table that says what it has refreshed.

    Attributes:
        view: the id of the view.
        transactions: Delta's, as pairs of application and version.
        operation: Delta's name of it.
    """

    version: int
    view: str
    number: int
    done: str
    sources: dict[str, int]
    transactions: list[tuple[str, int]]
    operation: str


@dataclass
class World:
    """One warehouse, and the processes that die over it."""

    folder: Path
    lives: int = 0
    killed: Counter[str] = field(default_factory=Counter)

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def live(self, statements: list[str], kill: Kill | None = None) -> dict[str, Any]:
        """Run statements in a process until it dies, or all views are up to date.

        Returns:
            What the process has seen, if it does not die.
        """
        file, result = self.folder / "life.json", self.folder / "result.json"
        conf = {"spark.driver.extraJavaOptions": java_options(), "spark.driver.memory": "1g"}
        life = Life(str(self.warehouse), conf, statements, result=str(result))
        if kill is not None:
            life = Life(str(self.warehouse), conf, statements, kill.view, kill.moment.value, kill.is_made, kill.seconds)
        file.write_text(json.dumps(asdict(life)))
        command = [sys.executable, "-m", "tests.faults.views_killed_at", str(file)]
        with (self.folder / "out.log").open("ab") as log:
            log.write(f"{kill}\n".encode())
            log.flush()
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = process.wait(timeout=DEADLINE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=120)
        self.lives += 1
        assert code == (0 if kill is None else -signal.SIGKILL), f"{kill}: the process ended by itself: {self.output()}"
        return {} if kill is not None else dict(json.loads(result.read_text()))

    def die(self, kill: Kill) -> None:
        """Let a process change the sources and die; what it has committed is what the moment says."""
        before = self.refreshes(kill.view)
        self.live([*changes(self.lives), *statements_of(kill)], kill)
        after = self.refreshes(kill.view)
        if kill.commits is not None and kill.doing != "create":
            ours = [each for each in after[len(before) :] if each.view == before[0].view and each.operation != "RESTORE"]
            assert len(ours) == kill.commits, f"{kill}: {ours}"
        self.killed[str(kill)] += 1

    def output(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")[-4000:]

    # What can be seen from outside.

    def refreshes(self, table: str) -> list[Refresh]:
        """What the commits of a view's table say, in order."""
        found: list[Refresh] = []
        for file in sorted(self.warehouse.glob(f"{table}/_delta_log/*.json")):
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
            if "userMetadata" in info:
                said = json.loads(info["userMetadata"])["sqlext"]
                sources = {name.rpartition(".")[2]: int(at["version"]) for name, at in said["sources"].items()}
                done = [(action["txn"]["appId"], int(action["txn"]["version"])) for action in actions if "txn" in action]
                number, version, operation = int(said["refresh"]), int(file.stem), str(info["operation"])
                found.append(Refresh(version, said["view"], number, said["done"], sources, done, operation))
        return found

    def version(self, table: str) -> int:
        return max(int(file.stem) for file in self.warehouse.glob(f"{table}/_delta_log/*.json"))

    def id_of(self, table: str) -> str:
        """The view that the table's metadata names."""
        logs = sorted(self.warehouse.glob(f"{table}/_delta_log/*.json"))
        actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        found = [action["metaData"]["configuration"][VIEW_PROPERTY] for action in actions if "metaData" in action]
        return str(found[-1])


def changes(seed: int) -> list[str]:
    """Statements that change the tables: `items` always, since all views read it."""
    chance = random.Random(seed)
    first, key = 1000 + seed * 20, chance.randrange(KEYS)
    inserted = f"INSERT INTO items SELECT id, id % {KEYS}, IF(id % 7 = 0, NULL, id % 50) FROM range({first}, {first + 12})"
    others = (
        f"UPDATE items SET x = x + 1 WHERE g = {key} AND id % 3 = {seed % 3}",
        f"UPDATE items SET g = (g + 1) % {KEYS + 1} WHERE id % 17 = {seed % 17}",
        f"DELETE FROM items WHERE id % 13 = {seed % 13}",
        f"DELETE FROM items WHERE g = {key}",
        f"MERGE INTO items AS t USING (SELECT id * 5 AS id, {key} AS g, {seed} AS x FROM range(40)) AS s ON t.id = s.id "
        "WHEN MATCHED AND t.x % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        f"MERGE INTO dims AS t USING (SELECT {key} AS g, 'w{seed % 5}' AS w UNION ALL SELECT {KEYS + seed}, 'w1') AS s "
        "ON t.g = s.g WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        f"DELETE FROM dims WHERE g = {key}",
        f"INSERT INTO dims VALUES ({key}, 'w{seed % 4}')",
    )
    return [inserted, others[seed // 2 % len(others)]] if seed % 2 else [inserted]


def statements_of(kill: Kill) -> list[str]:
    """The statements in which the process dies; the refresh of another view may come before."""
    if kill.doing in ("create", "replace"):
        is_new = kill.doing == "create"
        return [create("made") if is_new else create(kill.view, REPLACEMENT, "OR REPLACE")]
    others = [view for view in BY_HAND if view != kill.view]
    refreshes = [f"REFRESH MATERIALIZED VIEW {view}" for view in random.sample(others, random.choice((0, 0, 1)))]
    if kill.doing != "by itself":
        refreshes.append(f"REFRESH MATERIALIZED VIEW {kill.view}{' FULL' if kill.doing == 'full' else ''}")
    return refreshes


@pytest.mark.timeout(7200)
def test_kill_and_refresh_again(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    world = World(tmp_path)
    world.live(SET_UP)
    for kill in chosen(max(kills, IN_CI)):
        world.die(kill)
    refreshes = [f"REFRESH MATERIALIZED VIEW {view}" for view in BY_HAND]
    check_nothing_is_left(world, world.live([*changes(world.lives), *refreshes, create("made")]))

    damage = {view: damage_of(world, view, spark) for view in QUERIES}
    done = Counter(f"{view}: {each.done}" for view in QUERIES for each in world.refreshes(view))
    lost, doubled = (sum(each[what] for each in damage.values()) for what in ("lost", "doubled"))
    print(f"killed: {world.killed.total()}, at {dict(sorted(world.killed.items()))}")
    print(f"refreshes: {done.total()}, {dict(sorted(done.items()))}; rows lost: {lost}, doubled: {doubled}")
    assert (lost, doubled) == (0, 0), damage
    for view in QUERIES:
        check_numbers(world, view)
        assert view == "made" or any(each.done == WAYS[view] for each in world.refreshes(view)[1:]), f"{view}: {done}"


def check_nothing_is_left(world: World, seen: dict[str, Any]) -> None:
    """No view is half created, no table is left of one, and all views are up to date."""
    views = {*BY_HAND, *SCHEDULES}
    assert set(seen["swept"]) == {*views, *SOURCES}
    assert set(seen["views"]) == {*views, "made"}
    assert {view["error"] for view in seen["views"].values()} == {None}
    folders = {path.name for path in world.warehouse.iterdir() if not path.name.startswith("_")}
    assert folders == set(seen["tables"]) == {*views, *SOURCES, "made"}
    assert list(world.warehouse.glob("_sqlext/views/trial/*")) == []
    for view in seen["views"]:
        assert seen["views"][view]["id"] == world.id_of(view) == world.refreshes(view)[-1].view
        newest = world.refreshes(view)[-1]
        assert newest.sources == {source: world.version(source) for source in newest.sources}, f"{view} is behind: {newest}"


def check_numbers(world: World, view: str) -> None:
    """Refreshes are numbered without a gap or a repetition, and their transactions too.

    A replacement that was not finished has its own; what restores the view repeats the refresh that it restores.
    """
    known, last = world.refreshes(view), None
    name = known[0].view
    for at, each in enumerate(known):
        if each.view != name:
            assert known[at + 1].operation == "RESTORE", f"{view}: {each} was not undone"
        elif each.operation == "RESTORE":
            assert last is not None
            assert (each.number, each.sources) == (last.number, last.sources), f"{view}: {each} after {last}"
        else:
            assert each.number == (1 if last is None else last.number + 1), f"{view}: {each} after {last}"
            assert each.transactions == [(name, each.number)], f"{view}: {each}"
            last = each


def damage_of(world: World, view: str, spark: SparkSession) -> Counter[str]:
    """How many rows are lost and doubled in all versions of a view, against its query over the versions that each names."""
    damage: Counter[str] = Counter(lost=0, doubled=0)
    own = world.refreshes(view)[0].view
    for each in world.refreshes(view):
        query = QUERIES[view] if each.view == own else REPLACEMENT
        at = {name: f"(SELECT * FROM {table(world, name)} VERSION AS OF {version})" for name, version in each.sources.items()}
        expected = Counter(map(tuple, spark.sql(query.format(**at)).collect()))
        found = Counter(map(tuple, spark.sql(f"SELECT * FROM {table(world, view)} VERSION AS OF {each.version}").collect()))
        assert found.total() > 0, f"{view}: {each}"
        damage += Counter(lost=(expected - found).total(), doubled=(found - expected).total())
    return damage


def table(world: World, name: str) -> str:
    return f"delta.`{world.warehouse / name}`"
