"""Rounds: fresh sources, some views over them, generated changes, and after each step every view against its query.

    maintainer = Maintainer(create, refresh)
    round_ = run_round(spark, seed, number, maintainer)      # the views that number's turn has; or queries=[..] of QUERIES
    assert not round_.failures, round_.story()

`create(name, query)` does what CREATE MATERIALIZED VIEW name AS query does, `refresh(name)` what REFRESH MATERIALIZED VIEW name
does; either may raise, and both are called for several views at once, each by a thread of its own. A prototype plugs in its
own two functions, of which more is not asked than that the newest commit with userMetadata in the folder of the table `name` has
`{"sqlext": {"done": .., "because": .., "sources": {"spark_catalog.default.orders": {"version": 12}, ..}}}`. `statements(spark)`
are the two statements themselves, and `recomputed(spark)` overwrites with the query, which shows that the rounds are sound.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.differential.compare import Leniency, Result, difference
from tests.differential.view_changes import SOURCES, Changes
from tests.differential.view_queries import QUERIES, SQL_VIEWS, ViewQuery
from tests.integration.workshop import LEAN, local

VIEWS_A_ROUND = 4
_STEPS = (1, 2, 2, 3)
_AT_ONCE = 3
_CATALOG = "spark_catalog.default"
_NAMES = tuple(source.name for source in SOURCES)
_SHOWN = 2000


@dataclass(frozen=True)
class Maintainer:
    """What makes and refreshes views.

    Attributes:
        create: takes a name and a query; the view holds its rows when it returns.
        refresh: takes the name of a view; the view is up to date when it returns.
    """

    create: Callable[[str, str], object]
    refresh: Callable[[str], object]


@dataclass(frozen=True)
class Commit:
    """The newest commit of a view that names versions.

    Attributes:
        version: of the view's table.
        newest: the newest version of that table.
        record: what the commit's metadata has below `sqlext`.
    """

    version: int
    newest: int
    record: Mapping[str, Any]

    @property
    def sources(self) -> dict[str, int]:
        """The version of each source, by the name of its table without the catalog's and database's."""
        return {name.rpartition(".")[2].strip("`"): int(each["version"]) for name, each in self.record["sources"].items()}

    @property
    def done(self) -> str:
        return str(self.record["done"])

    @property
    def because(self) -> str:
        return str(self.record.get("because", ""))


@dataclass(frozen=True)
class Refresh:
    """One refresh of a view that has come to its end.

    Attributes:
        query: the view's.
        done: as the commit says; "no commit" if there was none.
        because: as the commit says.
        changes_schema: whether a source's columns changed since the refresh before.
    """

    query: ViewQuery
    done: str
    because: str
    changes_schema: bool


@dataclass
class Round:
    """What came of a round.

    Attributes:
        failures: what was wrong with a view after a step.
        failed: the queries of those views.
        refreshes: all refreshes, without the views' first ones.
        statements: what was done, in order.
    """

    seed: int
    number: int
    queries: Sequence[ViewQuery]
    failures: list[str] = field(default_factory=list)
    failed: list[ViewQuery] = field(default_factory=list)
    refreshes: list[Refresh] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)

    def story(self) -> str:
        """All that it takes to see the failures by hand: what was done to the sources of views that failed."""
        read = set().union(*(read_by(query.text) for query in self.failed))
        views = [f"CREATE VIEW {name} AS {text}" for name, text in SQL_VIEWS.items() if read_by(text) <= read]
        done = [f"{each};" for each in (*self.statements, *views) if read_by(each) & read or each.startswith("--")]
        head = f"seed {self.seed}, round {self.number}: {len(self.failures)} failures"
        return "\n\n".join([head, *self.failures, "\n".join(done)])


def statements(spark: SparkSession) -> Maintainer:
    """CREATE and REFRESH MATERIALIZED VIEW."""
    return Maintainer(
        lambda name, query: spark.sql(f"CREATE MATERIALIZED VIEW {name} REFRESH POLICY INCREMENTAL AS {query}").collect(),
        lambda name: spark.sql(f"REFRESH MATERIALIZED VIEW {name}").collect(),
    )


def recomputed(spark: SparkSession) -> Maintainer:
    """Spark alone: each refresh overwrites the view with its query."""
    queries: dict[str, str] = {}

    def write(name: str, how: str) -> None:
        sources = {f"{_CATALOG}.{each}": {"version": newest_version(location_of(spark, each))} for each in read_by(queries[name])}
        own = spark.newSession()
        record = {"sqlext": {"done": "full", "because": "a prototype", "sources": sources}}
        own.conf.set("spark.databricks.delta.commitInfo.userMetadata", json.dumps(record))
        own.sql(f"{how} {queries[name]}").collect()

    def create(name: str, query: str) -> None:
        queries[name] = query
        write(name, f"CREATE TABLE {name} USING delta AS")

    return Maintainer(create, lambda name: write(name, f"INSERT OVERWRITE {name}"))


def turn(seed: int, number: int, count: int = VIEWS_A_ROUND) -> list[ViewQuery]:
    """The queries of a round: each query comes once before one comes again."""
    names = list(QUERIES)
    chosen: list[ViewQuery] = []
    for at in range(number * count, (number + 1) * count):
        deck = random.Random(f"{seed}:deck:{at // len(names)}").sample(names, len(names))
        chosen.append(QUERIES[deck[at % len(names)]])
    return list({query.name: query for query in chosen}.values())


def run_round(
    spark: SparkSession, seed: int, number: int, maintainer: Maintainer, queries: Sequence[ViewQuery] | None = None
) -> Round:
    """Make the sources and views, change, refresh and compare them, and drop them all.

    Args:
        seed, number: decide all that happens.
        queries: the views'; by default, those whose turn it is.
    """
    round_ = Round(seed, number, turn(seed, number) if queries is None else queries)
    with lean(spark), ThreadPoolExecutor(_AT_ONCE) as pool:
        running = _Running(spark, round_, maintainer, pool)
        try:
            running.run()
        finally:
            running.drop()
    return round_


@contextmanager
def lean(spark: SparkSession) -> Iterator[None]:
    """The settings for little work over few rows; afterwards they are as before."""
    before = {key: spark.conf.get(key, None) for key in LEAN}
    for key, value in LEAN.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


class _Running:
    def __init__(self, spark: SparkSession, round_: Round, maintainer: Maintainer, pool: ThreadPoolExecutor) -> None:
        self._spark = spark
        self._round = round_
        self._maintainer = maintainer
        self._pool = pool
        self._random = random.Random(f"{round_.seed}:{round_.number}")
        self._folders: dict[str, Path] = {}
        readers = Counter(table for query in round_.queries for table in read_by(query.text))
        self._changes = Changes(self._random, self._newest, readers)
        self._views = {f"mv_{query.name}": query for query in round_.queries}
        self._refreshed: dict[str, Commit] = {}
        self._found: dict[str, Result] = {}
        self._pinned: dict[str, int] = {}
        self._step = 0
        self._past = spark.newSession()
        for key, value in LEAN.items():
            self._past.conf.set(key, value)

    def run(self) -> None:
        creates = self._changes.create()
        self._round.statements += creates
        list(self._pool.map(self._sql, creates))
        self._folders = {name: location_of(self._spark, name) for name in _NAMES}
        for name, text in SQL_VIEWS.items():
            self._sql(f"CREATE OR REPLACE VIEW {name} AS {text}")
        self._each(lambda name: self._maintainer.create(name, self._views[name].text))
        self._compare()
        for _ in range(self._random.choice(_STEPS)):
            self._step += 1
            self._round.statements.append(f"-- step {self._step}")
            for change in self._changes.changes():
                for statement in change():
                    self._round.statements.append(statement)
                    self._sql(statement)
            self._each(self._maintainer.refresh)
            self._compare()

    def drop(self) -> None:
        for name in SQL_VIEWS:
            self._sql(f"DROP VIEW IF EXISTS {name}")
        gone = {*self._views, *self._refreshed}
        dropped = [row.tableName for row in self._spark.sql("SHOW TABLES").collect() if not row.isTemporary]
        for name in dropped:
            kind = "MATERIALIZED VIEW" if name in gone and self._is_managed(name) else "TABLE"
            self._sql(f"DROP {kind} IF EXISTS {name}")
        java: Any = self._spark._jvm
        java.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def _is_managed(self, name: str) -> bool:
        """Whether sqlext made the view: a prototype's table is none."""
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
        return any(row.key == "sqlext.view" for row in rows)

    def _sql(self, statement: str) -> None:
        self._spark.sql(statement).collect()

    def _newest(self, table: str) -> int:
        return newest_version(self._folders[table])

    def _each(self, step: Callable[[str], object]) -> None:
        """Do it for each view that has not failed yet."""

        def done(name: str) -> None:
            try:
                step(name)
            except Exception as error:  # noqa: BLE001  # whatever comes out of it is a failure of this view
                self._fail(name, f"{type(error).__name__}: {str(error)[:_SHOWN]}")

        list(self._pool.map(done, list(self._views)))

    def _fail(self, name: str, what: str) -> None:
        """The view's end in this round."""
        query = self._views.pop(name)
        before = self._refreshed.get(name)
        commit = f"\nlast equal at: version {before.version}: {json.dumps(before.record)}" if before else ""
        head = f"seed {self._round.seed}, round {self._round.number}, after step {self._step}, query {query.name}:\n{query.text}"
        self._round.failures.append(f"{head}\n{what}{commit}")
        self._round.failed.append(query)

    def _compare(self) -> None:
        """Look at the views' commits, and compare the views with their queries over the versions that those name.

        A view without a commit since the last look was compared then.
        """
        commits: dict[str, Commit] = {}
        for name in list(self._views):
            try:
                commits[name] = newest_commit(location_of(self._spark, name))
            except (LookupError, ValueError, OSError) as error:
                self._fail(name, f"no commit names its versions: {type(error).__name__}: {error}")
                continue
            if problem := self._problem(name, commits[name]):
                self._fail(name, f"{problem}\ncommit {commits[name].version}: {json.dumps(commits[name].record)}")
        groups: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for name in self._views:
            before = self._refreshed.get(name)
            if before is not None and (before.version, before.sources) == (commits[name].version, commits[name].sources):
                self._note(name, commits[name])
                continue
            groups.setdefault(tuple(sorted(commits[name].sources.items())), []).append(name)
        for key in sorted(groups, key=len):
            self._pin(key)
            problems = list(self._pool.map(lambda name: self._difference(name, commits[name]), groups[key]))
            for name, problem in zip(groups[key], problems, strict=True):
                if problem:
                    self._fail(name, f"{problem}\ncommit {commits[name].version}: {json.dumps(commits[name].record)}")
                else:
                    self._note(name, commits[name])

    def _problem(self, name: str, commit: Commit) -> str:
        """What is wrong with a commit before any row is looked at."""
        if commit.version != commit.newest:
            return f"the newest version of the view, {commit.newest}, names no versions"
        before = self._refreshed.get(name)
        if before is not None and commit.version > before.version + 1:
            return f"a refresh made {commit.version - before.version} commits"
        if before is not None and "refresh" in commit.record:
            made = int(commit.record["refresh"]) - int(before.record["refresh"])
            if made != commit.version - before.version:
                return f"the commit's refresh is number {commit.record['refresh']}, after {before.record['refresh']}"
        read = read_by(self._views[name].text)
        if set(commit.sources) != read:
            return f"the commit names {sorted(commit.sources)}, and the query reads {sorted(read)}"
        for table, version in commit.sources.items():
            newest = self._newest(table)
            if version > newest or changes_between(self._folders[table], version, newest):
                return f"{table} is at version {newest}, and the commit names {version}"
        return ""

    def _pin(self, versions: Sequence[tuple[str, int]]) -> None:
        """Make the tables be those versions' for queries of the session of the past, also below SQL views.

        Their rows are read once: for each query, Delta would look for the table's files anew, by jobs over its log.
        """
        for table, version in versions:
            if self._pinned.get(table) != version:
                at = f" VERSION AS OF {version}" if version != self._newest(table) else ""
                self._past.sql(f"SELECT * FROM {_CATALOG}.{table}{at}").localCheckpoint().createOrReplaceTempView(table)
                self._pinned[table] = version
        for name, text in SQL_VIEWS.items():
            if read_by(text) <= {table for table, _ in versions}:
                self._past.sql(text).createOrReplaceTempView(name)

    def _difference(self, name: str, commit: Commit) -> str:
        expected = Result.of(self._past.sql(self._views[name].text))
        found = self._rows_of(name, commit)
        if (newest := newest_version(location_of(self._spark, name))) != commit.version:
            return f"the view was at version {commit.version}, and is at version {newest}: somebody has refreshed it meanwhile"
        approximate = self._views[name].approximate
        places = frozenset(at for at, (column, _) in enumerate(expected.columns) if column in approximate)
        return difference(found, expected, Leniency(approximate=places))

    def _rows_of(self, name: str, commit: Commit) -> Result:
        """The rows of a view; it has those of before, where no commit since then has added or removed a file."""
        before = self._refreshed.get(name)
        done = [] if before is None else [*actions(location_of(self._spark, name), before.version + 1, commit.version)]
        if before is None or any({"metaData", "add", "remove"} & action.keys() for action in done):
            self._found[name] = Result.of(self._spark.table(f"{_CATALOG}.{name}"))
        return self._found[name]

    def _note(self, name: str, commit: Commit) -> None:
        before = self._refreshed.get(name)
        if before is not None:
            changed = any(
                "metaData" in action
                for table, version in commit.sources.items()
                for action in actions(self._folders[table], before.sources[table] + 1, version)
            )
            done = commit.done if commit.version != before.version else "no commit"
            self._round.refreshes.append(Refresh(self._views[name], done, commit.because, changed))
        self._refreshed[name] = commit


def location_of(spark: SparkSession, table: str) -> Path:
    """The folder of a table."""
    java: Any = spark._jvm
    session: Any = spark._jsparkSession
    name = java.org.apache.spark.sql.catalyst.TableIdentifier(table)
    metadata = session.sessionState().catalog().getTableMetadata(name)
    return local(str(metadata.location().toString()))


def newest_version(folder: Path) -> int:
    """The newest version of a table, by its log's files."""
    return max(int(file.stem) for file in (folder / "_delta_log").glob("*.json") if file.stem.isdigit())


def actions(folder: Path, first: int, last: int) -> Iterator[Mapping[str, Any]]:
    """The actions of a table's versions from the first to the last."""
    for version in range(first, last + 1):
        yield from map(json.loads, (folder / "_delta_log" / f"{version:020}.json").read_text(encoding="utf-8").splitlines())


def changes_between(folder: Path, version: int, newest: int) -> bool:
    """Whether rows or columns of a table change after a version."""
    changed = ("add", "remove")
    return any(
        "metaData" in action or any(action.get(kind, {}).get("dataChange") for kind in changed)
        for action in actions(folder, version + 1, newest)
    )


def newest_commit(folder: Path) -> Commit:
    """The newest commit of a view that names versions.

    Raises:
        LookupError: none does.
    """
    newest = newest_version(folder)
    for version in range(newest, -1, -1):
        for action in actions(folder, version, version):
            record = json.loads(action.get("commitInfo", {}).get("userMetadata") or "{}").get("sqlext", {})
            if "sources" in record:
                return Commit(version, newest, record)
    raise LookupError(f"none of the {newest + 1} commits has sources in its metadata")


def read_by(query: str) -> set[str]:
    """The sources that a query reads, itself or by SQL views."""
    text = query
    for name, definition in SQL_VIEWS.items():
        text = re.sub(rf"\b{name}\b", definition, text)
    return {name for name in _NAMES if re.search(rf"\b{name}\b", text)}


def ways_taken(refreshes: Sequence[Refresh]) -> str:
    """The share of refreshes by what was done, and by query the ways taken, and why a full one was."""
    by_done = Counter(each.done for each in refreshes)
    lines = [f"{count:6} {count / len(refreshes):6.1%} {done}" for done, count in by_done.most_common()]
    for name in sorted({each.query.name for each in refreshes}):
        own = [each for each in refreshes if each.query.name == name]
        ways = ", ".join(f"{done} {count}" for done, count in Counter(each.done for each in own).most_common())
        why = next((f" ({each.because})" for each in own if each.done == "full"), "")
        lines.append(f"  {name}: {ways}{why}")
    return "\n".join(lines)
