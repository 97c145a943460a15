"""Keyed functions on Spark, in bounded stages: against a plain Python computation over the same rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

import sqlext
from sqlext.errors import KeyedFunctionError, SchemaError, UnsupportedError
from tests.integration.workshop import Workshop
from tests.support import rows

GAP = 30_000  # milliseconds


class Sessions(sqlext.KeyedProcessFunction):
    """A row for each run of clicks with less than `GAP` between them: counted while they come, told when the key ends."""

    def open(self, runtime_context: sqlext.RuntimeContext) -> None:
        self.last = runtime_context.get_value_state("last", "at BIGINT")
        self.sessions = runtime_context.get_map_state("sessions", "start BIGINT", "clicks BIGINT, pages BIGINT")
        self.start = runtime_context.get_value_state("start", "at BIGINT")

    def process_element(self, row: Row, context: sqlext.KeyedContext) -> None:
        at = context.timestamp()
        assert at is not None
        assert context.current_watermark() < at
        last = self.last.value()
        if last is None or at - last >= GAP:
            self.start.update(at)
            context.register_event_time_timer(at)
        self.last.update(at)
        start = self.start.value()
        clicks, pages = self.sessions.get_value(start) or (0, 0)
        self.sessions.put(start, (clicks + 1, pages + row.pages))

    def on_timer(self, timestamp: int, context: sqlext.KeyedContext) -> Iterator[tuple[Any, ...]]:
        yield (*context.key, timestamp // 1000, *self.sessions.get_value(timestamp))


SESSIONS = Sessions()  # a name stands for one function
RETURNS = "user STRING, start BIGINT, clicks BIGINT, pages BIGINT"


def expected(found: list[Row]) -> list[tuple[Any, ...]]:
    """The same, over a dictionary of all clicks."""
    by_user: dict[str | None, list[tuple[int, int]]] = defaultdict(list)
    for row in found:
        by_user[row.user].append((int(row.at.timestamp() * 1000), row.pages))
    result = []
    for user, clicks in by_user.items():
        runs: list[list[int]] = []
        last = None
        for at, pages in sorted(clicks):
            if last is None or at - last >= GAP:
                runs.append([at // 1000, 0, 0])
            runs[-1][1] += 1
            runs[-1][2] += pages
            last = at
        result += [(user, *run) for run in runs]
    return sorted(result, key=repr)


@pytest.fixture
def clicks(sql: Workshop) -> Workshop:
    sql(
        "CREATE TABLE clicks USING delta AS SELECT CASE WHEN u % 11 = 0 THEN NULL ELSE concat('u', u) END AS user, "
        "timestamp_seconds(1700000000 + (id * 7919) % 5000) AS at, CAST(id % 4 AS INT) AS pages "
        "FROM (SELECT id, (id * 31) % 23 AS u FROM range(3000))"
    )
    sqlext.register_keyed_function("sessions", SESSIONS, returns=RETURNS)
    return sql


def test_from_a_dataframe(clicks: Workshop) -> None:
    frame = clicks.spark.table("clicks")
    found = sqlext.process_keyed(frame.groupBy("user"), Sessions(), RETURNS, order_by="at")
    assert rows(found) == expected(frame.collect())
    assert found.columns == ["user", "start", "clicks", "pages"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM process_keyed(TABLE(clicks) PARTITION BY user ORDER BY at, 'sessions')",
        "SELECT * FROM process_keyed(TABLE(SELECT * FROM clicks WHERE pages >= 0) PARTITION BY user ORDER BY at, 'SESSIONS') s",
        "WITH c AS (SELECT * FROM clicks) SELECT s.* FROM process_keyed(TABLE(c) PARTITION BY user ORDER BY at, 'sessions') s",
    ],
)
def test_from_sql(clicks: Workshop, query: str) -> None:
    assert clicks.batch(query) == expected(clicks.spark.table("clicks").collect())


def test_into_a_table_and_listed(clicks: Workshop) -> None:
    clicks(
        "CREATE TABLE made USING delta AS SELECT * FROM process_keyed(TABLE(clicks) PARTITION BY user ORDER BY at, 'sessions')"
    )
    assert clicks.batch("SELECT * FROM made") == expected(clicks.spark.table("clicks").collect())
    listed = [tuple(row) for row in clicks("SHOW PARTITION FUNCTIONS") if row.name == "sessions"]
    assert listed == [("sessions", "process_keyed", "rows", RETURNS)]


def test_the_plan_exchanges_and_sorts_by_key_once(clicks: Workshop) -> None:
    frame = sqlext.process_keyed(clicks.spark.table("clicks").groupBy("user"), Sessions(), RETURNS, order_by="at")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert [plan.count(word) for word in ("Exchange hashpartitioning", "Sort [", "MapInArrow")] == [1, 1, 1]


class Failing(sqlext.KeyedProcessFunction):
    def process_element(self, row: Row, context: sqlext.KeyedContext) -> list[int]:
        if row.user == "u3":
            raise ValueError("no u3, please")
        return [1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            "process_keyed(TABLE(clicks) PARTITION BY user, 'session')",
            PySparkException,
            "no keyed function `session`.*`sessions`",
        ),
        ("process_keyed(TABLE(clicks) ORDER BY at, 'sessions')", PySparkException, "process_keyed needs keys"),
        ("process_keyed(TABLE(clicks) PARTITION BY user)", PySparkException, "Write process_keyed"),
    ],
)
def test_mistakes_in_a_call(clicks: Workshop, call: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        clicks(f"SELECT * FROM {call}")


def test_a_failing_function_is_told_with_key_and_row(clicks: Workshop) -> None:
    frame = sqlext.process_keyed(clicks.spark.table("clicks").groupBy("user"), Failing(), "n INT")
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    text = str(caught.value)
    assert KeyedFunctionError.__name__ in text
    assert [word for word in ("Failing", "'u3'", "ValueError: no u3, please") if word not in text] == []


def test_what_cannot_be_keyed(clicks: Workshop) -> None:
    frame = clicks.spark.table("clicks")
    with pytest.raises(SchemaError, match=r"process_keyed takes df\.groupBy"):
        sqlext.process_keyed(frame, Sessions(), RETURNS)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(UnsupportedError, match="without columns"):
        sqlext.process_keyed(frame.groupBy(), Sessions(), RETURNS)
    with pytest.raises(SchemaError, match=r"extends sqlext\.KeyedProcessFunction"):
        sqlext.process_keyed(frame.groupBy("user"), print, RETURNS)  # type: ignore[arg-type]  # the mistake
    stream = clicks.spark.readStream.table("clicks")
    with pytest.raises(UnsupportedError, match="by their event time only"):
        sqlext.process_keyed(stream.groupBy("user"), Sessions(), RETURNS, order_by="user")
    for order in ("DESC", "NULLS LAST"):
        read = f"process_keyed(TABLE(STREAM clicks) PARTITION BY user ORDER BY at {order}, 'sessions')"
        with pytest.raises(PySparkException, match=r"from the earliest to the latest\. Leave out DESC and NULLS LAST"):
            clicks(f"CREATE STREAMING TABLE backwards AS SELECT * FROM {read}")
    with pytest.raises(SchemaError, match="process_keyed cannot order rows as requested"):
        sqlext.process_keyed(frame.groupBy("user"), Sessions(), RETURNS, order_by="nope")


def test_without_an_event_time(clicks: Workshop) -> None:
    """Ordered by a name: there is no time, and rows come in that order."""

    class First(sqlext.KeyedProcessFunction):
        def open(self, runtime_context: sqlext.RuntimeContext) -> None:
            self.seen = runtime_context.get_value_state("seen", "x BOOLEAN")

        def process_element(self, row: Row, context: sqlext.KeyedContext) -> list[tuple[Any, ...]]:
            assert context.timestamp() is None
            if self.seen.exists():
                return []
            self.seen.update(True)
            return [(row.pages, row.user)]

    frame = clicks.spark.table("clicks").where("user IS NOT NULL")
    found = sqlext.process_keyed(frame.groupBy("pages"), First(), "pages INT, user STRING", order_by="user")
    assert rows(found) == rows(frame.groupBy("pages").agg({"user": "min"}))


class Runs(sqlext.KeyedProcessFunction):
    """A row for each run of clicks with less than `GAP` between them, told when it is over: by time, or by the key's end."""

    def open(self, runtime_context: sqlext.RuntimeContext) -> None:
        self.runs = runtime_context.get_map_state("runs", "start BIGINT", "last BIGINT, clicks BIGINT, pages BIGINT")
        self.start = runtime_context.get_value_state("start", "at BIGINT")
        self.tags = runtime_context.get_list_state("tags", "tag STRING")

    def process_element(self, row: Row, context: sqlext.KeyedContext) -> Iterator[tuple[Any, ...]]:
        at = context.timestamp()
        assert at is not None
        assert context.current_watermark() < at
        assert at == round(row.at.timestamp() * 1000)
        start, run = self.start.value(), None
        if start is not None and (run := self.runs.get_value(start)) is not None and at - run[0] < GAP:
            context.delete_event_time_timer(run[0] + GAP)
        else:
            start, run = at, (at, 0, 0)
            self.start.update(start)
            self.tags.append(row.detail.tag)
            if len(list(self.tags.get())) > 3:
                self.tags.put(list(self.tags.get())[-3:])
        self.runs.put(start, (at, run[1] + 1, run[2] + row.pages))
        context.register_event_time_timer(at + GAP)
        if row.pages == 3 and row.user == "u3":
            yield (row.user, at, "three", list(self.tags.get()), row.detail, row.at)

    def on_timer(self, timestamp: int, context: sqlext.KeyedContext) -> Iterator[tuple[Any, ...]]:
        assert context.timestamp() == timestamp <= context.current_watermark()
        for start, (last, clicks, pages) in self.runs.iterator():
            if last + GAP == timestamp:
                yield (*context.key, start, f"{clicks} clicks, {pages} pages", None, None, None)
                self.runs.remove(start)


RUNS = "user STRING, start BIGINT, what STRING, tags ARRAY<STRING>, detail STRUCT<tag: STRING, n: INT>, at TIMESTAMP"


def test_the_same_function_over_a_stream_in_a_flow(clicks: Workshop) -> None:
    """The clicks come in the order of their times, in three micro-batches; one of a last user moves the watermark past all."""
    spark = clicks.spark
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    ordered = "SELECT *, named_struct('tag', concat('t', pages), 'n', pages) AS detail FROM clicks WHERE {} ORDER BY at"
    clicks(f"CREATE TABLE in_order USING delta AS {ordered.format('at < timestamp_seconds(1700001500)')}")
    clicks(f"INSERT INTO in_order {ordered.format('at BETWEEN timestamp_seconds(1700001500) AND timestamp_seconds(1700003000)')}")
    clicks(f"INSERT INTO in_order {ordered.format('at > timestamp_seconds(1700003000)')}")
    bounded = sqlext.process_keyed(spark.table("in_order").groupBy("user"), Runs(), RUNS, order_by="at")
    runs = rows(bounded)
    assert len(runs) > 30
    clicks("INSERT INTO in_order VALUES ('end', timestamp_seconds(1800000000), 0, named_struct('tag', 'e', 'n', 0))")
    stream = spark.readStream.option("maxFilesPerTrigger", "1").table("in_order").withWatermark("at", "1 second")
    sqlext.process_keyed(stream.groupBy("user"), Runs(), RUNS, order_by="at").createOrReplaceTempView("runs_of_stream")
    sqlext.register_keyed_function("runs", Runs(), returns=RUNS)
    call = (
        "process_keyed(TABLE(STREAM in_order {} WATERMARK at DELAY OF INTERVAL 1 SECOND) PARTITION BY user ORDER BY at, 'runs')"
    )
    for flow, relation in (
        ("of_view", "STREAM runs_of_stream"),
        ("of_call", call.format("WITH ('maxFilesPerTrigger' = '1')")),
    ):
        clicks(f"CREATE STREAMING TABLE {flow} AS SELECT * FROM {relation}")
        clicks(f"WAIT FLOW {flow}")
        assert clicks.batch(f"SELECT * FROM {flow}") == runs
        assert clicks.shown(flow).micro_batches >= 3
    assert clicks.shown("of_call").note is None, "it can be resumed"
    plan = clicks(f"EXPLAIN CREATE STREAMING TABLE x AS SELECT * FROM {call.format('')}")[0].plan
    assert re.search(r"ProcessKeyed process_keyed\(.*\) \[no attributes\]", plan)


class Idle(sqlext.KeyedProcessFunction):
    """A row when a key was idle, or had its time: whichever timer fires first takes the other one back."""

    def process_element(self, row: Row, context: sqlext.KeyedContext) -> None:
        at = context.timestamp()
        assert at is not None
        context.register_event_time_timer(at + 1000)
        context.register_event_time_timer(at + 2000)

    def on_timer(self, timestamp: int, context: sqlext.KeyedContext) -> Iterator[tuple[Any, ...]]:
        yield (*context.key, timestamp)
        context.delete_event_time_timer(timestamp + 1000)
        context.delete_event_time_timer(timestamp - 1000)


def test_a_timer_that_is_deleted_when_both_have_expired(sql: Workshop) -> None:
    """One step of the watermark passes both, so that Spark has fetched the second before the first takes it back."""
    sql("CREATE TABLE seen (k STRING, at TIMESTAMP) USING delta")
    sql("INSERT INTO seen VALUES ('a', timestamp_seconds(1700000000)), ('b', timestamp_seconds(1700000001))")
    sql("INSERT INTO seen VALUES ('end', timestamp_seconds(1800000000))")
    found = rows(sqlext.process_keyed(sql.spark.table("seen").groupBy("k"), Idle(), "k STRING, at BIGINT", order_by="at"))
    sqlext.register_keyed_function("idle", Idle(), returns="k STRING, at BIGINT")
    call = "process_keyed(TABLE(STREAM seen WITH ('maxFilesPerTrigger' = '1') WATERMARK at DELAY OF INTERVAL 1 SECOND) "
    sql(f"CREATE STREAMING TABLE t AS SELECT * FROM {call} PARTITION BY k ORDER BY at, 'idle')")
    sql("WAIT FLOW t")
    expected = [row for row in found if row[0] != "end"]
    assert [row[0] for row in expected] == ["a", "b"]
    assert sql.batch("SELECT * FROM t WHERE k <> 'end'") == expected


class Times(sqlext.KeyedProcessFunction):
    """The event time of each row."""

    def process_element(self, row: Row, context: sqlext.KeyedContext) -> list[tuple[Any, ...]]:
        return [(row.k, context.timestamp())]


def test_a_time_without_a_zone_is_read_as_utc_whatever_the_session(sql: Workshop) -> None:
    """Also one that no clock of the session's zone has shown, at the begin of its summer time."""
    sql.spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    times = ["2024-07-01 12:00:00", "2024-03-10 02:30:00.123456", "2024-11-03 01:30:00", "1969-12-31 23:59:59.9995"]
    sql("CREATE TABLE local (k INT, at TIMESTAMP_NTZ) USING delta")
    sql(f"INSERT INTO local VALUES {', '.join(f'({k}, TIMESTAMP_NTZ{at!r})' for k, at in enumerate(times))}")
    utc = [datetime.fromisoformat(at).replace(tzinfo=UTC) - datetime.fromtimestamp(0, UTC) for at in times]
    expected = [(k, since // timedelta(milliseconds=1)) for k, since in enumerate(utc)]

    def of(frame: DataFrame) -> DataFrame:
        return sqlext.process_keyed(frame.groupBy("k"), Times(), "k INT, at BIGINT", order_by="at")

    assert rows(of(sql.spark.table("local"))) == expected
    of(sql.spark.readStream.table("local")).createOrReplaceTempView("times")
    sql("CREATE STREAMING TABLE t AS SELECT * FROM STREAM times")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == expected


def test_a_call_within_a_prerequisite_of_a_flow(clicks: Workshop) -> None:
    """What users clicked before is told beside each new click."""
    clicks("CREATE TABLE new USING delta AS SELECT 'u3' AS user, 1 AS page UNION ALL SELECT 'nobody', 2")
    clicks(
        "CREATE STREAMING TABLE t AS SELECT n.user, n.page, h.sessions FROM STREAM new AS n LEFT JOIN (SELECT user, count(*) AS "
        "sessions FROM process_keyed(TABLE(STREAM clicks) PARTITION BY user ORDER BY at, 'sessions') GROUP BY user "
        "GLOBAL WINDOW END OF STREAM) AS h ON n.user = h.user"
    )
    clicks("WAIT FLOW t")
    sessions = [row for row in expected(clicks.spark.table("clicks").collect()) if row[0] == "u3"]
    assert clicks.batch("SELECT * FROM t") == [("nobody", 2, None), ("u3", 1, len(sessions))]
