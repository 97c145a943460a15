"""Runs a group of queries at once, as flows over one source and as bounded queries, and compares each with its batch query."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sqlext.quoting import quote
from sqlext.spark import failures, sessions
from sqlext.spark.storage import HadoopPath
from tests.differential.compare import Leniency, Result, difference
from tests.differential.data import CREATE, CREATE_DIM, INSERT_DIM, Commits
from tests.differential.tree import Form, Query
from tests.integration.workshop import Workshop

_POLLING = ("spark.sql.streaming.pollingDelay", "400ms")
"""How often each of a group's twenty flows looks at the source; of the flows' own 100 ms, looking takes most of a core."""
BACKENDS = ("rocksdb", "delta")
WAYS = (*BACKENDS, "end of stream")
_CONDITIONS = ("{0} IS NOT NULL", "{0} IS NULL OR {1} IS NOT NULL", "{1} IS NULL", "{1} IS NOT NULL AND {0} <=> {0}")
"""What constraints of some flows want of a row's first and last column."""
_REFUSAL = "_LEGACY_ERROR_TEMP_3100"  # the condition that sqlext's own messages travel under
_NOT_REFUSALS = ("sqlext failed on this statement", "The rule ", "Rule `")
_SETTINGS = {  # much runs once, over a few rows
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_VARIED = {
    "spark.sql.shuffle.partitions": ("1", "1", "3"),
    "spark.sql.session.timeZone": ("Etc/UTC", "America/New_York", "Asia/Kathmandu"),
    "spark.sql.ansi.enabled": ("true", "true", "false"),
}
"""Settings of which each group has one value."""
_COMPACTED = ("", "", "ev", "dim", "kept")
"""What may be compacted between two commits: nothing, the source, what it is joined with, the flows' tables."""


class Verdict(Enum):
    """What became of a query in one way."""

    EQUAL = "equal"
    REFUSED = "refused"
    DIFFERENT = "different"
    ERROR = "error"
    NOT_IN_BATCH = "not in batch"


@dataclass(frozen=True)
class Outcome:
    """A query's verdict in one way.

    Attributes:
        way: a state backend, or "end of stream".
        detail: the reason of a refusal, what differs, or the error; of a batch query that fails, its error.
    """

    query: Query
    way: str
    verdict: Verdict
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        return self.verdict in (Verdict.DIFFERENT, Verdict.ERROR)

    @property
    def reason(self) -> str:
        """The detail without what is the query's own: names, literals, numbers."""
        return normalised(self.detail)


@dataclass(frozen=True)
class Scenario:
    """What happens around the queries of a group.

    Attributes:
        commits: of the source; the first one is there before the flows.
        restarts: what happens before the commit of that number: "crash", "stop", or nothing.
        looks: whether the flows are waited for and compared after the commit of that number; else the next thing happens at once.
        buffered: for each query whether its flows buffer results; over again where there are more queries.
        ways: in which the queries run.
        dropping: for each query the condition that its flows' rows must hold, with {0} and {1} for the first and the last column;
            empty: none; over again where there are more queries.
        settings: of the session that makes the flows and runs the batch queries.
        compacted: one of `_COMPACTED` before the commit of that number; over again where there are more commits.
    """

    commits: Commits
    restarts: tuple[str, ...]
    looks: tuple[bool, ...]
    buffered: tuple[bool, ...]
    ways: tuple[str, ...] = WAYS
    dropping: tuple[str, ...] = ("",)
    settings: Mapping[str, str] = field(default_factory=dict)
    compacted: tuple[str, ...] = ("",)

    def dropping_for(self, number: int) -> str:
        """The condition for the query of a number."""
        return self.dropping[number % len(self.dropping)]

    def compacted_before(self, at: int) -> str:
        """What is compacted before the commit of a number."""
        return self.compacted[at % len(self.compacted)] if at else ""


def scenario(random_: random.Random, commits: Commits, ways: tuple[str, ...] = WAYS) -> Scenario:
    """A scenario with at least one restart."""
    count = len(commits.rows)
    restarts = [random_.choice(("", "crash", "stop")) for _ in range(count)]
    restarts[random_.randrange(1, count)] = random_.choice(("crash", "stop"))
    looks = (*(random_.random() < 0.5 for _ in range(count - 1)), True)
    buffered = tuple(random_.random() < 0.5 for _ in range(7))
    more = random.Random(repr((buffered, restarts, looks)))
    settings = {key: more.choice(values) for key, values in _VARIED.items()}
    compacted = tuple(more.choice(_COMPACTED) for _ in range(count))
    dropping = dropping_of(random.Random(repr(buffered)))
    return Scenario(commits, ("", *restarts[1:]), looks, buffered, ways, dropping, settings, compacted)


def dropping_of(random_: random.Random) -> tuple[str, ...]:
    """Conditions for constraints, for some queries."""
    return tuple(random_.choice((*_CONDITIONS, *[""] * (2 * len(_CONDITIONS)))) for _ in range(11))


@contextmanager
def arena(sql: Workshop, scenario: Scenario) -> Iterator[None]:
    """The settings under which a group runs; afterwards they are as before."""
    settings = {**_SETTINGS, **scenario.settings}
    before = {key: sql.spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        sql.spark.conf.set(key, value)
    try:
        with patch.dict(sessions._FLOW_SETTINGS, [_POLLING]):
            yield
    finally:
        for key, old in before.items():
            sql.spark.conf.unset(key) if old is None else sql.spark.conf.set(key, old)


class Group:
    """One run of some queries over one source.

    Args:
        queries: at most some twenty, of which each has a flow a backend.
    """

    def __init__(self, sql: Workshop, queries: Sequence[Query], scenario: Scenario) -> None:
        self._sql = sql
        self._queries = queries
        self._scenario = scenario
        self._flows: dict[str, tuple[int, str]] = {}
        self._outcomes: dict[tuple[int, str], Outcome] = {}
        self._pool = ThreadPoolExecutor(3)
        self._is_last = False
        self._conditions: dict[int, str] = {}
        self._kept: dict[int, Result] = {}

    def run(self) -> list[Outcome]:
        """The outcome of each query in each way, in their order."""
        try:
            self._sql(CREATE)
            self._sql(CREATE_DIM)
            self._sql(INSERT_DIM)
            for at in range(len(self._scenario.commits.rows)):
                self._step(at)
            self._bounded(self._expected)
            return [self._outcome(number, way) for number in range(len(self._queries)) for way in self._scenario.ways]
        finally:
            self._pool.shutdown()
            self._clear()

    def _outcome(self, number: int, way: str) -> Outcome:
        return self._outcomes.get((number, way), Outcome(self._queries[number], way, Verdict.EQUAL))

    def _step(self, at: int) -> None:
        self._is_last = at == len(self._scenario.commits.rows) - 1
        self._restart(self._scenario.restarts[at])
        self._compact(self._scenario.compacted_before(at))
        self._sql(self._scenario.commits.insert(at))
        if at == 0 or self._scenario.looks[at]:
            self._compute()
        if at == 0:
            self._create()
        if self._scenario.looks[at]:
            list(self._pool.map(self._check, self._open()))

    def _compute(self) -> None:
        """Run the batch queries; one that Spark does not run as a batch is left out from here on."""
        self._expected = dict(self._pool.map(lambda n: (n, self._batch(n)), range(len(self._queries))))
        numbers = [number for number in self._conditions if isinstance(self._expected[number], Result)]
        self._kept = dict(self._pool.map(lambda n: (n, self._without_dropped(n)), numbers))
        for number, expected in self._expected.items():
            if isinstance(expected, str):
                for way in self._scenario.ways:
                    self._outcomes[number, way] = Outcome(self._queries[number], way, Verdict.NOT_IN_BATCH, expected)

    def _batch(self, number: int) -> Result | str:
        try:
            frame = self._sql.spark.sql(self._queries[number].render(Form.BATCH))
            condition = condition_on(frame.columns, self._scenario.dropping_for(number))
            if condition and _is_one(frame, condition):
                self._conditions[number] = condition
            return Result.of(frame)
        except (PySparkException, Py4JError) as error:  # Spark's own failures too: some queries its optimizer does not survive
            return failures.reason_of(error).partition("\n")[0]

    def _without_dropped(self, number: int) -> Result:
        frame = self._sql.spark.sql(self._queries[number].render(Form.BATCH))
        return Result.of(frame.where(F.expr(self._conditions[number])))

    def _open(self) -> list[str]:
        return [flow for flow, key in self._flows.items() if key not in self._outcomes]

    def _create(self) -> None:
        ways = [way for way in self._scenario.ways if way in BACKENDS]
        keys = [(number, way) for way in ways for number in range(len(self._queries)) if (number, way) not in self._outcomes]
        list(self._pool.map(self._start, keys))

    def _start(self, key: tuple[int, str]) -> None:
        number, way = key
        query, flow = self._queries[number], f"t{number}_{way}"
        buffered = self._scenario.buffered[number % len(self._scenario.buffered)]
        interval = "'execution.flush.max-interval' = '10 minutes', " if buffered else ""
        try:
            properties = f"TBLPROPERTIES ({interval}'state.backend.type' = '{way}')"
            condition = self._conditions.get(number)
            listed = f"(CONSTRAINT c EXPECT ({condition}) ON VIOLATION DROP ROW)" if condition else ""
            self._sql(f"CREATE STREAMING TABLE {flow} {listed} {properties} AS {query.render(Form.FLOW)}")
            self._flows[flow] = key
        except Exception as error:  # noqa: BLE001  # whatever comes out of a statement is an outcome
            self._outcomes[key] = Outcome(query, way, *verdict_of(error))

    def _check(self, flow: str) -> None:
        number, way = self._flows[flow]
        query, expected = self._queries[number], self._kept.get(number, self._expected[number])
        assert isinstance(expected, Result)
        try:
            self._sql(f"WAIT FLOW {flow}")
            found = Result.of(self._table(flow))
        except Exception as error:  # noqa: BLE001
            self._outcomes[number, way] = Outcome(query, way, Verdict.ERROR, f"{type(error).__name__}: {str(error)[:2000]}")
            return
        if different := difference(found, expected, leniency_of(query)):
            self._outcomes[number, way] = Outcome(query, way, Verdict.DIFFERENT, different)

    def _table(self, flow: str) -> DataFrame:
        """The flow's rows: after the last commit as anybody reads them.

        Before that, they come from the files that Delta's log names, by another reader: to read a table, Spark replays its log
        in twice as many jobs as the flush had.
        """
        table = self._sql.spark.table(flow)
        if self._is_last:
            return table
        log = DeltaTable(Path(str(self._sql.spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"), flow))
        protocol, files = log.protocol(), log.file_uris()
        is_plain = protocol.min_reader_version == 1 or protocol.reader_features == ["timestampNtz"]
        if not is_plain or not files or log.metadata().partition_columns:
            return table
        return self._sql.spark.read.schema(table.schema).parquet(*files)

    def _restart(self, how: str) -> None:
        if how == "crash":
            self._sql.crash()
            self._sql.resume()
        elif how == "stop":
            flows = self._open()
            for flow in flows:
                self._quietly(flow, "STOP")
            for flow in flows:
                self._quietly(flow, "START")

    def _compact(self, what: str) -> None:
        for table in self._open() if what == "kept" else filter(None, (what,)):
            try:
                self._sql(f"OPTIMIZE {table}")
            except PySparkException as error:  # a flush that comes first wins
                if "Concurrent" not in str(error):
                    raise

    def _quietly(self, flow: str, what: str) -> None:
        number, way = self._flows[flow]
        try:
            self._sql(f"{what} FLOW {flow}")
        except Exception as error:  # noqa: BLE001
            self._outcomes[number, way] = Outcome(self._queries[number], way, Verdict.ERROR, f"{what}: {str(error)[:2000]}")

    def _bounded(self, expected: dict[int, Result | str]) -> None:
        way = WAYS[-1]
        if way in self._scenario.ways:
            numbers = [number for number in range(len(self._queries)) if (number, way) not in self._outcomes]
            list(self._pool.map(partial(self._check_bounded, expected=expected), numbers))

    def _check_bounded(self, number: int, expected: dict[int, Result | str]) -> None:
        query, batch, way = self._queries[number], expected[number], WAYS[-1]
        assert isinstance(batch, Result)
        try:
            found = Result.of(self._sql.spark.sql(query.render(Form.END)))
        except Exception as error:  # noqa: BLE001
            self._outcomes[number, way] = Outcome(query, way, *verdict_of(error))
            return
        if different := difference(found, batch, leniency_of(query)):
            self._outcomes[number, way] = Outcome(query, way, Verdict.DIFFERENT, different)

    def _clear(self) -> None:
        """Take the flows' home and the tables away, all at once."""
        installed = self._sql.installed
        if installed.host is not None:
            home = installed.host.home
            installed.host.close()
            installed.host = None
            HadoopPath(self._sql.spark, home).delete()
        for row in self._sql("SHOW TABLES"):
            if not row.isTemporary:
                self._sql(f"DROP TABLE IF EXISTS {row.tableName}")
        java: Any = self._sql.spark._jvm
        java.org.apache.spark.sql.delta.DeltaLog.clearCache()


def condition_on(columns: Sequence[str], template: str) -> str:
    """Return the condition on a table with some columns; empty: none, or names that do not tell columns apart.

    >>> condition_on(["a", "b c"], "{0} IS NULL OR {1} IS NOT NULL")
    '`a` IS NULL OR `b c` IS NOT NULL'
    """
    is_clear = len({name.lower() for name in columns}) == len(columns)
    return template.format(quote(columns[0]), quote(columns[-1])) if is_clear else ""


def _is_one(frame: DataFrame, condition: str) -> bool:
    """Return whether a condition fits the types of the columns: those of maps cannot be compared."""
    try:
        frame.where(F.expr(condition))
    except AnalysisException:
        return False
    return True


def leniency_of(query: Query) -> Leniency:
    shown = query.shown()
    return Leniency(
        frozenset(at for at, item in enumerate(shown) if item.value.is_approximate or item.value.adds_fractions),
        frozenset(at for at, item in enumerate(shown) if item.value.is_unordered),
    )


def verdict_of(error: Exception) -> tuple[Verdict, str]:
    """Whether an error is a refusal by name, of sqlext's own."""
    text = str(error)
    is_ours = isinstance(error, PySparkException) and error.getCondition() == _REFUSAL
    if is_ours and not any(each in text for each in _NOT_REFUSALS):
        return Verdict.REFUSED, re.sub(r"^\[\w+\]\s*", "", text.strip()).partition("\n")[0]
    return Verdict.ERROR, f"{type(error).__name__}: {text[:2000]}"


def normalised(reason: str) -> str:
    """A message without what is one query's own.

    >>> normalised("Column `c1` is an array (line 1, column 9)")
    'Column `..` is an array'
    """
    text = reason.partition("\n")[0]
    text = re.sub(r" ?\(line \d+, (?:column|pos) \d+\)", "", text)
    text = re.sub(r"`[^`]*`(?:\.`[^`]*`)*", "`..`", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'..'", text)
    return re.sub(r"\bt\d+_\w+|\d+", "N", text)[:300]
