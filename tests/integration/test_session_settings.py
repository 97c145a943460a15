"""A flow or job goes on with the settings of the session that made it, in every process: effective values, defaults included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqlext.execution.jobs import division
from sqlext.spark import sessions
from sqlext.spark.java import java_of, scala_object
from sqlext.spark.jvm import clone_session
from sqlext.spark.settings import MEANING, recorded, restore
from tests.integration.test_jobs import die_after, killed  # noqa: F401  # a fixture
from tests.integration.workshop import Workshop
from tests.support import rows

ZONE = "spark.sql.session.timeZone"
EVENING = "TIMESTAMP '2024-03-01 20:00:00 UTC'"  # the next day in Tokyo
MORNING = "TIMESTAMP '2024-03-02 02:00:00 UTC'"  # the same day in Tokyo as that evening
KEPT_ANYWAY = {  # what legacy settings do that no query's meaning hangs on
    "addSingleFileInAddFile": "a way of sending files",
    "allowTempViewCreationWithMultipleNameparts": "a check of CREATE VIEW",
    "blockCreateTempTableUsingProvider": "a check of CREATE TABLE",
    "bucketedTableScan.outputOrdering": "a plan",
    "dataFrameWriterV2IgnorePathOption": "a call of Scala's",
    "dataset.nameNonStructGroupingKeyAsValue": "a call of Scala's",
    "emptyCurrentDBInCli": "a prompt",
    "keepCommandOutputSchema": "columns of SHOW",
    "notReserveProperties": "a check of CREATE TABLE",
    "raiseErrorWithoutErrorClass": "an error's text",
    "replaceDatabricksSparkAvro.enabled": "a class's name",
    "sessionInitWithConfigDefaults": "how sessions begin",
    "setCommandRejectsSparkCoreConfs": "a check of SET",
    "skipTypeValidationOnAlterPartition": "a check of ALTER TABLE",
    "storeAnalyzedPlanForView": "how views are kept",
    "useV1Command": "a class",
}


@contextmanager
def host_in(spark: SparkSession, zone: str) -> Iterator[None]:
    """The process's own time zone."""
    zones = java_of(spark).java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(zone))
    try:
        yield
    finally:
        zones.setDefault(before)


@pytest.fixture
def sql(spark: SparkSession) -> Workshop:
    workshop = Workshop(spark)
    workshop("CREATE TABLE seen (at TIMESTAMP, text STRING) USING delta")
    return workshop


def insert(sql: Workshop, *rows: str) -> None:
    sql(f"INSERT INTO seen VALUES {', '.join(rows)}")


def test_every_setting_is_known_to_spark(spark: SparkSession) -> None:
    assert [key for key in MEANING if key not in recorded(spark)] == []


def test_no_legacy_setting_is_forgotten(spark: SparkSession) -> None:
    """Those of a new version of Spark are to be looked at."""
    entries = scala_object(spark, "org.apache.spark.sql.internal.SQLConf").getConfigEntries()
    prefix = "spark.sql.legacy."
    keys = (str(each.key()) for each in java_of(spark).java.util.ArrayList(entries))
    legacy = {key for key in keys if key.startswith(prefix)}
    assert legacy - set(MEANING) == {prefix + name for name in KEPT_ANYWAY}


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
def test_a_local_day_stays_one_key_under_another_zone_of_the_host(sql: Workshop, backend: str) -> None:
    with host_in(sql.spark, "Asia/Tokyo"):
        insert(sql, f"({EVENING}, 'a')")
        sql(
            f"CREATE STREAMING TABLE t TBLPROPERTIES ('state.backend.type' = '{backend}') AS "
            "SELECT to_date(at) AS day, count(*) AS n FROM STREAM seen GROUP BY to_date(at)"
        )
        sql("WAIT FLOW t")
        sql.crash()
    with host_in(sql.spark, "UTC"):
        assert sql.spark.conf.get(ZONE) == "UTC"
        assert sql.resume() == ["t"]
        insert(sql, f"({MORNING}, 'b')")
        sql("WAIT FLOW t")
        assert sql.batch("SELECT CAST(day AS STRING), n FROM t") == [("2024-03-02", 2)]


@pytest.mark.usefixtures("lean")
def test_an_instant_stays_one_where_timestamp_means_a_local_time(sql: Workshop) -> None:
    """In columns, within others, in tables between two queries, in states, in quarantine, and in what SHOW answers."""
    sql("SET TIME ZONE 'America/New_York'")
    sql("SET spark.sql.timestampType = TIMESTAMP_NTZ")
    columns = "k INT, ts TIMESTAMP_LTZ, s STRUCT<`TIMESTAMP`: ARRAY<TIMESTAMP_LTZ>, `it's`: MAP<INT, TIMESTAMP_NTZ>>"
    sql(f"CREATE TABLE ev ({columns}) USING delta")
    sql(f"CREATE TABLE t ({columns}) USING delta")
    sql("CREATE FLOW t AS INSERT INTO t SELECT * FROM STREAM ev")
    sql(
        "CREATE STREAMING TABLE checked (CONSTRAINT c EXPECT (k > 1) ON VIOLATION QUARANTINE INTO bad) AS SELECT * FROM STREAM ev"
    )
    queries = {
        "newest": "SELECT k, max(ts) AS at, max_by(s, ts) AS s, avg(k) AS mean FROM {} GROUP BY k",
        "top": "SELECT k, max(ts) AS at, count(DISTINCT ts) AS n FROM {} GROUP BY k ORDER BY at LIMIT 9",
        "both": "SELECT max(ts) AS at FROM {}",
    }
    for name, query in queries.items():
        sql(f"CREATE STREAMING TABLE {name} AS {query.format('STREAM ev')}")
    sql(f"CREATE MATERIALIZED VIEW v AS {queries['newest'].format('ev').replace('max_by(s, ts) AS s,', 'sum(k) AS s,')}")
    for k in (1, 2):
        at = f"TIMESTAMP_LTZ '2024-01-0{k} 12:00:00 UTC'"
        inner = f"struct(array({at}, NULL), map(1, TIMESTAMP_NTZ '2024-01-01 12:00:00'))"
        sql(f"INSERT INTO ev VALUES ({k}, {at}, {inner})")
        for name in ("t", "checked", *queries):
            sql(f"WAIT FLOW {name}")
    sql("REFRESH MATERIALIZED VIEW v")

    def same(table: str, query: str) -> bool:
        found, expected = sql.spark.table(table), sql.spark.sql(query)
        return found.dtypes == expected.dtypes and rows(found) == rows(expected)

    assert same("t", "SELECT * FROM ev")
    assert sql("SELECT hour(ts) AS h FROM t WHERE k = 1")[0].h == 7
    for name, query in queries.items():
        assert same(name, query.format("ev")), name
    assert same("v", queries["newest"].format("ev").replace("max_by(s, ts) AS s,", "sum(k) AS s,"))
    assert sql("SELECT hour(ts) AS h, _quarantined_at > now() - INTERVAL 1 HOUR AS fresh FROM bad") == [(7, True)]
    assert sql("SELECT typeof(_quarantined_at) AS kind FROM bad")[0].kind == "timestamp"
    assert sql.shown("t").last_flush is not None


def test_a_flow_that_runs_keeps_its_zone(sql: Workshop) -> None:
    with host_in(sql.spark, "Asia/Tokyo"):
        sql("CREATE STREAMING TABLE t AS SELECT to_date(at) AS day, count(*) AS n FROM STREAM seen GROUP BY to_date(at)")
    with host_in(sql.spark, "UTC"):
        insert(sql, f"({EVENING}, 'a')", f"({MORNING}, 'b')")
        sql("STOP FLOW t")
        sql("START FLOW t")
        sql("WAIT FLOW t")
        assert sql.batch("SELECT CAST(day AS STRING), n FROM t") == [("2024-03-02", 2)]


@pytest.mark.parametrize(
    ("setting", "first", "later", "query", "expected"),
    [
        # without ANSI, what is no number is NULL; with it, the flow would fail
        ("spark.sql.ansi.enabled", "false", "true", "SELECT CAST(text AS INT) AS x FROM STREAM seen", [(None,), (None,)]),
        # two columns only where case matters
        (
            "spark.sql.caseSensitive",
            "true",
            "false",
            "SELECT a.x FROM (SELECT text AS x, text || '!' AS X FROM STREAM seen) a",
            [("1-2-2024",), ("2-2-2024",)],
        ),
        # 'CORRECTED' would refuse one-digit days and months
        (
            "spark.sql.legacy.timeParserPolicy",
            "LEGACY",
            "CORRECTED",
            "SELECT CAST(to_date(text, 'dd-MM-yyyy') AS STRING) AS x FROM STREAM seen",
            [("2024-02-01",), ("2024-02-02",)],
        ),
        (
            "spark.sql.legacy.sizeOfNull",
            "true",
            "false",
            "SELECT size(CAST(NULL AS ARRAY<INT>)) x FROM STREAM seen",
            [(-1,), (-1,)],
        ),
    ],
)
def test_settings_hold_in_the_next_process(
    sql: Workshop, setting: str, first: str, later: str, query: str, expected: list[Any]
) -> None:
    """`first` is what the application had when the flow was made; the next one starts with `later`."""
    base = sql.host._spark
    if setting == "spark.sql.legacy.sizeOfNull":
        sql("SET spark.sql.ansi.enabled = false")
    sql.spark.conf.set(setting, first)
    insert(sql, "(NULL, '1-2-2024')")
    sql(f"CREATE STREAMING TABLE t AS {query}")
    sql("WAIT FLOW t")
    sql.crash()
    sql.spark.conf.set(setting, later)  # the next host is made of this session
    assert sql.resume() == ["t"]
    assert sql.host._spark is not base
    insert(sql, "(NULL, '2-2-2024')")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT x FROM t") == expected


def test_a_default_is_recorded_too(sql: Workshop) -> None:
    """A value that nobody set holds against one that the next process sets, one without default too."""
    undefined = "spark.sql.legacy.csv.enableDateTimeParsingFallback"
    kept = recorded(clone_session(sql.spark))
    other = clone_session(sql.spark)
    other.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    other.conf.set(undefined, "true")
    restore(other, kept)
    assert other.conf.get("spark.sql.mapKeyDedupPolicy") == "EXCEPTION"
    assert other.conf.get(undefined) is None
    assert recorded(other) == kept


def test_a_variable_of_the_session_stands_in_the_flow_by_its_value(sql: Workshop) -> None:
    """`${..}` is Spark's own; the flow's next process does not know its value."""
    sql("SET wanted = a")
    insert(sql, "(NULL, 'a')", "(NULL, 'b')")
    sql("CREATE STREAMING TABLE t AS SELECT text FROM STREAM seen WHERE text = '${wanted}'")
    sql("WAIT FLOW t")
    sql.crash()
    sql.spark.conf.unset("wanted")
    sql.resume()
    insert(sql, "(NULL, 'a')", "(NULL, 'c')")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a",), ("a",)]


def test_what_is_not_listed_is_not_recorded(spark: SparkSession) -> None:
    own = clone_session(spark)
    own.conf.set("fs.azure.account.key.shop", "k3y")
    own.conf.set("spark.hadoop.fs.s3a.access", "k3y")
    own.conf.set("spark.sql.catalog.shop.uri", "jdbc:postgresql://ann:k3y@db/shop")
    own.conf.set("spark.sql.streaming.checkpointLocation", "s3a://ann:k3y@bucket/x")
    own.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    own.conf.set("spark.databricks.delta.merge.repartitionBeforeWrite.enabled", "false")
    kept = recorded(own)
    assert "k3y" not in str(kept)
    assert kept["spark.sql.adaptive.coalescePartitions.enabled"] == "false"
    assert kept["spark.databricks.delta.merge.repartitionBeforeWrite.enabled"] == "false"
    assert kept["spark.sql.shuffle.partitions"] == "2"


@pytest.mark.usefixtures("every_result_is_kept")
def test_a_resumed_job_keeps_its_zone(
    sql: Workshop,
    die_after: Callable[[int], None],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = "SELECT to_date(at) AS day, count(*) AS n FROM STREAM seen GROUP BY to_date(at) GLOBAL WINDOW END OF STREAM"
    with host_in(sql.spark, "Asia/Tokyo"):
        insert(sql, f"({EVENING}, 'a')")
        insert(sql, f"({MORNING}, 'b')")
        sql("SET execution.batch.job-recovery.enabled = true")
        job = killed(sql, f"CREATE TABLE t USING delta AS {query}", die_after, monkeypatch, 1)
    with host_in(sql.spark, "UTC"):
        sql(f"RESUME JOB {job}")
        assert sql.batch("SELECT CAST(day AS STRING), n FROM t") == [("2024-03-02", 2)]


@pytest.fixture
def every_result_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "KEPT_BYTES", 0)


def test_a_log_is_replayed_in_as_many_tasks_as_its_files_need(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "spark.databricks.delta.snapshotPartitions"
    sql = Workshop(spark)
    sql.source()
    sql("CREATE STREAMING TABLE given AS SELECT k, v FROM STREAM ev")
    spark.conf.unset(key)
    sql("CREATE STREAMING TABLE small AS SELECT k, v FROM STREAM ev")
    monkeypatch.setattr(sessions, "_FILES_A_PARTITION", 1)
    for _ in range(3):
        sql("INSERT INTO ev VALUES ('c', 4)")
    files = len(spark.table("ev").inputFiles())
    sql("CREATE STREAMING TABLE large AS SELECT k, v FROM STREAM ev")
    spark.conf.set(key, "3")
    sql("CREATE STREAMING TABLE set AS SELECT k, v FROM STREAM ev")

    assert files > 3
    assert sql.installed.host is not None
    given = {flow.spec.name: flow.session.conf.get(key, None) for flow in sql.installed.host.flows.all.values()}
    assert given == {"given": "2", "small": "2", "large": str(files), "set": "3"}


@pytest.mark.usefixtures("lean")
def test_joins_that_no_user_has_written_are_free(sql: Workshop) -> None:
    sql("SET spark.sql.crossJoin.enabled = false")
    insert(sql, f"({EVENING}, 'a')", f"({MORNING}, 'b')")
    sql("CREATE TABLE one (n BIGINT) USING delta")
    sql("CREATE FLOW one AS INSERT INTO one SELECT count(*) FROM STREAM seen")
    queries = {"sums": "SELECT count(*) AS n FROM {}", "means": "SELECT avg(length(text)) AS mean FROM {}"}
    for name, query in queries.items():
        sql(f"CREATE STREAMING TABLE {name} AS {query.format('STREAM seen')}")
    insert(sql, f"({EVENING}, 'long')")
    for name in ("one", *queries):
        sql(f"WAIT FLOW {name}")
    assert sql.batch("SELECT n FROM one") == [(3,)]
    queries["sums"] = "SELECT count(*) AS n, max(text) AS top FROM {}"
    sql(f"ALTER FLOW sums AS {queries['sums'].format('STREAM seen')}")
    sql("WAIT FLOW sums")
    for name, query in queries.items():
        assert sql.batch(f"SELECT * FROM {name}") == sql.batch(query.format("seen"))
