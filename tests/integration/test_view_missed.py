"""Changes that a refresh could miss, or count wrongly: each view against its query after each step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import PandasUDFType, pandas_udf

import sqlext
from sqlext.errors import OptionError, UnsupportedError
from sqlext.execution.views import refresh
from sqlext.execution.views.merging import mergeable
from sqlext.execution.views.sources import newest
from sqlext.plan.lineage import place
from sqlext.plan.view_spec import SourceVersion
from sqlext.spark import delta_tables
from sqlext.spark.plans import Plans, analysed, tree_of
from tests.integration.test_view_answers import KV, MAPPED, Case, check, rows
from tests.integration.workshop import DEADLINE, Workshop, local
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("lean")

SUMS = "SELECT k, sum(x) AS s, count(x) AS c, count(*) AS n FROM t GROUP BY k"
HUGE = 6 * 10**37
RATES = "CREATE OR REPLACE FUNCTION rates() RETURNS TABLE (k INT, r INT) RETURN {}"
MANY = ", ".join(f"x{at} INT" for at in range(30))
TINY = ("INSERT INTO t VALUES (1, 0.0000000001)", "INSERT INTO t VALUES (1, 0.0000000001), (2, 5)", "DELETE FROM t WHERE x < 1")

CASES: dict[str, Case] = {
    "sums_with_all_digits": Case(rows("t", "k INT, x DECIMAL(28, 10)", "(1, 0.0000000001)"), SUMS, TINY),
    "sums_with_most_digits": Case(rows("t", "k INT, x DECIMAL(27, 10)", "(1, 0.0000000001)"), SUMS, TINY, never_full=True),
    "sums_that_overflow": Case(
        (
            "SET spark.sql.ansi.enabled = false",
            *rows("t", "k INT, x DECIMAL(38, 0)", f"(1, {HUGE}), (1, {HUGE})"),
        ),
        SUMS,
        ("INSERT INTO t VALUES (1, 1)", f"DELETE FROM t WHERE x = 1; INSERT INTO t VALUES (2, {HUGE})"),
    ),
    "sums_that_overflowed": Case(
        (
            "SET spark.sql.ansi.enabled = false",
            *rows("t", "k INT, x DECIMAL(38, 0), y INT", f"(1, {HUGE}, 1), (1, {HUGE}, 2)"),
        ),
        SUMS,
        ("DELETE FROM t WHERE y = 1",),
    ),
    "large_sums_that_fail_where_they_overflow": Case(
        rows("t", "k INT, x DECIMAL(38, 0)", "(1, 60000000000000000000000000000000000001), (1, 2)"),
        SUMS,
        ("INSERT INTO t VALUES (1, 1)", "DELETE FROM t WHERE x = 2"),
        never_full=True,
    ),
    "scalar_subquery_of_a_whole_table": Case(
        (*KV, *rows("least", "y INT", "(11)"), *rows("two", "y INT", "(1), (11)")),
        "SELECT k, x FROM t WHERE x > (TABLE least) AND x >= (SELECT max(y) FROM two WHERE y < (TABLE least))",
        ("UPDATE least SET y = 10", "UPDATE least SET y = 12; UPDATE two SET y = 15 WHERE y = 1"),
    ),
    "table_function_redefined": Case(
        (*KV, RATES.format("SELECT * FROM VALUES (1, 10)")),
        "SELECT t.k, x * r AS y FROM t JOIN rates() r USING (k)",
        (
            RATES.format("SELECT * FROM VALUES (1, 11)"),
            RATES.format("SELECT id, 10 FROM range(1, 2)"),
            RATES.format("SELECT id, 10 FROM range(1, 3)"),
        ),
    ),
    "column_added_to_many": Case(
        rows("t", f"k INT, {MANY}", f"(1{', 2' * 30})"),
        "SELECT k, array_max(array(*)) AS m FROM t",
        ("ALTER TABLE t ADD COLUMN z INT; UPDATE t SET z = 7",),
    ),
    "nested_field_dropped_and_added": Case(
        rows("t", "k INT, s STRUCT<a: INT, b: INT>", "(1, struct(1, 2))", MAPPED.format("false")),
        "SELECT k, s.b AS b FROM t",
        ("ALTER TABLE t DROP COLUMN s.b; ALTER TABLE t ADD COLUMN s.b INT", "INSERT INTO t VALUES (2, struct(1, 7))"),
    ),
    "nested_field_of_a_list_dropped_and_added": Case(
        rows("t", "k INT, s ARRAY<STRUCT<a: INT, b: INT>>", "(1, array(struct(1, 2)))", MAPPED.format("true")),
        "SELECT k, s[0].b AS b FROM t",
        ("ALTER TABLE t DROP COLUMN s.element.b; ALTER TABLE t ADD COLUMN s.element.b INT",),
    ),
    "variants_of_several_types": Case(
        ("CREATE TABLE t (k INT, v VARIANT) USING delta", """INSERT INTO t SELECT 1, parse_json('["2024-01-01", 1]')"""),
        "SELECT k, v, schema_of_variant(variant_get(v, '$[0]', 'variant')) AS s FROM t",
        ("UPDATE t SET v = array(DATE'2024-01-01'::VARIANT, 1::VARIANT)::VARIANT", "INSERT INTO t SELECT 2, 7::VARIANT"),
    ),
    "missing_files_are_ignored": Case(
        ("SET spark.sql.files.ignoreMissingFiles = true", *KV),
        "SELECT k, x FROM t",
        (
            "UPDATE t SET x = x + 1; OPTIMIZE t; SET spark.databricks.delta.retentionDurationCheck.enabled = false; "
            "VACUUM t RETAIN 0 HOURS",
        ),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_view_answers_as_its_query(sql: Workshop, name: str) -> None:
    check(sql, CASES[name])


@pytest.mark.parametrize("feed", ["false", "true"])
@pytest.mark.parametrize("before", ["r", "x", ""])
@pytest.mark.parametrize("after", ["r", "x", ""])
def test_a_source_that_is_partitioned_in_another_way(sql: Workshop, before: str, after: str, feed: str) -> None:
    query = "SELECT r, avg(x) AS a FROM t GROUP BY r"
    properties = f"TBLPROPERTIES ('delta.enableChangeDataFeed' = '{feed}')"
    sql(f"CREATE TABLE t (r STRING, x INT) USING delta {f'PARTITIONED BY ({before})' if before else ''} {properties}")
    sql("INSERT INTO t VALUES ('c', 1), ('c', 3), ('a', 2)")
    sql(f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}")
    location = sql("DESCRIBE DETAIL t")[0].location
    left = sql.spark.createDataFrame([("a", 2)], "r STRING, x INT")
    writer = left.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    (writer.partitionBy(after) if after else writer).save(location)
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") == sql.batch(query) == [("a", 2.0)]


def test_damaged_files_are_ignored(sql: Workshop) -> None:
    sql("SET spark.sql.files.ignoreCorruptFiles = true")
    sql("CREATE TABLE t (k INT) USING delta")
    sql("INSERT INTO t VALUES (1)")
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k FROM t")
    for file in local(sql("DESCRIBE DETAIL t")[0].location).glob("*.parquet"):
        file.write_bytes(b"damaged")
    sql("INSERT OVERWRITE t VALUES (2)")
    assert "a file of the sources cannot be read" in sql("REFRESH MATERIALIZED VIEW v")[0][0]
    assert sql.batch("SELECT * FROM v") == [(2,)]


def test_files_that_another_writer_has_removed(sql: Workshop) -> None:
    """The protocol lets a writer say no more of them than their paths."""
    for statement in rows("t", "k INT", "(1), (2)", "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k FROM t")
    sql("DELETE FROM t WHERE k = 1")
    log = local(sql("DESCRIBE DETAIL t")[0].location) / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{2:020d}.json").read_text().splitlines()]
    said = ("path", "deletionTimestamp", "dataChange")
    kept = [{"remove": {key: each["remove"][key] for key in said}} if "remove" in each else each for each in actions]
    (log / f"{2:020d}.json").write_text("\n".join(map(json.dumps, kept)))
    (log / f".{2:020d}.json.crc").unlink(missing_ok=True)
    cast(Any, sql.spark._jvm).org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert "full (the changes cannot be read: a writer" in sql("REFRESH MATERIALIZED VIEW v")[0][0]
    assert sql.batch("SELECT * FROM v") == [(2,)]


CHANGED_JUST_NOW = {
    "ALTER TABLE t RENAME COLUMN x TO y": "x",
    "ALTER TABLE t RENAME COLUMN x TO w; ALTER TABLE t RENAME COLUMN w TO X": [(1, 10), (2, 20)],
    "ALTER TABLE t DROP COLUMN x": "x",
    "ALTER TABLE t ALTER COLUMN x TYPE BIGINT; INSERT INTO t (k, x) VALUES (3, 30000000000)": [
        (1, 10),
        (2, 20),
        (3, 30000000000),
    ],
    "ALTER TABLE t RENAME COLUMN z TO y": [(1, 10), (2, 20)],
}


@pytest.mark.parametrize("change", CHANGED_JUST_NOW)
def test_a_column_that_changes_while_the_query_is_analysed(sql: Workshop, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    widened = MAPPED.format("false").replace(")", ", 'delta.enableTypeWidening' = 'true')")
    for statement in rows("t", "k INT, x INT, z INT", "(1, 10, 0), (2, 20, 0)", widened):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v AS SELECT k, x FROM t")
    sql("ALTER TABLE t SET TBLPROPERTIES ('is' = 'another')")  # else the query is not analysed again
    calls, before = list[int](), list(sql.batch("SELECT * FROM v"))

    def change_and_look(*given: Any) -> dict[str, SourceVersion]:
        calls.append(1)
        if len(calls) == 2:  # the query was analysed again, for this refresh
            for statement in change.split("; "):
                sql(statement)
        return newest(*given)

    monkeypatch.setattr(refresh, "newest", change_and_look)
    expected = CHANGED_JUST_NOW[change]
    if isinstance(expected, list):
        sql("REFRESH MATERIALIZED VIEW v FULL")
        assert sql.batch("SELECT * FROM v") == expected
    else:
        with pytest.raises(PySparkException, match=f"with name `{expected}` cannot be resolved"):
            sql("REFRESH MATERIALIZED VIEW v FULL")
        assert sql.batch("SELECT * FROM v") == before


def test_a_wave_does_not_go_back_to_a_version_whose_columns_had_other_names(sql: Workshop) -> None:
    for statement in rows("t", "k INT, x INT", "(1, 10)", MAPPED.format("false")):
        sql(statement)
    sql("ALTER TABLE t RENAME COLUMN x TO y")
    sql("CREATE MATERIALIZED VIEW v AS SELECT k, y FROM t")
    spec = sql.host.views.record(("spark_catalog", "default", "v")).spec
    location, table_id, _ = delta_tables.named(sql.spark, "t")
    pins = {place(location): SourceVersion(table_id, 1, location)}
    assert sql.host.views.live(spec).refresh(True, pins=pins).sources["spark_catalog.default.t"].version == 2
    assert sql.batch("SELECT * FROM v") == [(1, 10)]


def test_a_wave_does_not_take_a_view_back_that_was_refreshed_since_its_cut_was_found(sql: Workshop) -> None:
    for statement in (*rows("t", "k INT, x INT", "(1, 10)"), "CREATE MATERIALIZED VIEW v AS SELECT k, x FROM t"):
        sql(statement)
    spec = sql.host.views.record(("spark_catalog", "default", "v")).spec
    location, table_id, _ = delta_tables.named(sql.spark, "t")
    pins = {place(location): SourceVersion(table_id, 1, location)}
    sql("INSERT INTO t VALUES (2, 20)")
    sql("REFRESH MATERIALIZED VIEW v")
    report = sql.host.views.live(spec).refresh(pins=pins)
    assert (report.done, report.sources["spark_catalog.default.t"].version) == ("no change", 2)
    assert sql.batch("SELECT * FROM v") == [(1, 10), (2, 20)]


def test_the_columns_of_an_old_version_are_not_those_of_now(sql: Workshop) -> None:
    for statement in rows("t", "k INT, x INT", "(1, 10)", MAPPED.format("false")):
        sql(statement)
    sql("ALTER TABLE t DROP COLUMN x")
    query = "SELECT k FROM t UNION ALL SELECT x FROM t VERSION AS OF 1"
    sql(f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}")
    sql("INSERT INTO t VALUES (2)")
    assert ": append" in sql("REFRESH MATERIALIZED VIEW v")[0][0]
    assert sql.batch("SELECT * FROM v") == [(1,), (10,), (2,)]


def test_changes_are_not_read_where_files_may_be_left_out(sql: Workshop) -> None:
    sql("CREATE TABLE t (k INT) USING delta")
    sql("INSERT INTO t VALUES (1)")
    sql("SET spark.sql.files.ignoreMissingFiles = true")
    with pytest.raises(OptionError, match=r"SET spark.sql.files.ignoreMissingFiles = false"):
        sqlext.changes(sql.spark, "t", 0, 1)


def test_the_changes_of_a_table(sql: Workshop) -> None:
    sql("CREATE TABLE t (k INT, x INT) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    sql("INSERT INTO t VALUES (1, 10), (2, 20), (2, 20)")
    sql("UPDATE t SET x = 21 WHERE k = 2")
    sql("ALTER TABLE t ADD COLUMN y INT")
    found = sqlext.changes(sql.spark, "t", 1, 3)
    assert found.columns == ["k", "x", "y", "_weight"]
    assert {tuple(row) for row in found.collect()} == {(2, 20, None, -2), (2, 21, None, 2)}
    sql("ALTER TABLE t RENAME COLUMN x TO z")
    with pytest.raises(UnsupportedError, match=r"the changes cannot be read: .* incompatible schema change"):
        sqlext.changes(sql.spark, "t", 1, 4)


def test_a_name_that_means_another_table_now(sql: Workshop, tmp_path: Path) -> None:
    sql(f"CREATE TABLE t (k INT, x INT) USING delta LOCATION '{tmp_path / 'a'}'")
    sql("INSERT INTO t VALUES (1, 1)")
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k, x FROM t")
    sql("REFRESH MATERIALIZED VIEW v")
    sql("DROP TABLE t")
    with pytest.raises(PySparkException, match="cannot be found"):
        sql("REFRESH MATERIALIZED VIEW v")
    sql(f"CREATE TABLE t (k INT, x INT) USING delta LOCATION '{tmp_path / 'b'}'")
    sql("INSERT INTO t VALUES (2, 2)")
    assert "spark_catalog.default.t was replaced" in sql("REFRESH MATERIALIZED VIEW v")[0][0]
    assert sql.batch("SELECT * FROM v") == [(2, 2)]
    assert "no change" in sql("REFRESH MATERIALIZED VIEW v")[0][0]


def test_a_view_with_a_target_lag_whose_name_means_another_table(sql: Workshop, tmp_path: Path) -> None:
    sql(f"CREATE TABLE t (x INT) USING delta LOCATION '{tmp_path / 'a'}'")
    sql("INSERT INTO t VALUES (1)")
    sql("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('target-lag' = '5 seconds') AS SELECT x FROM t")
    sql("DROP TABLE t")
    sql(f"CREATE TABLE t (x INT) USING delta LOCATION '{tmp_path / 'b'}'")
    sql("INSERT INTO t VALUES (2)")
    eventually(lambda: sql.batch("SELECT * FROM v") == [(2,)], DEADLINE)


def test_two_tables_that_change_their_names(sql: Workshop, tmp_path: Path) -> None:
    for name, value in (("t", 1), ("u", 2)):
        sql(f"CREATE TABLE {name} (x INT) USING delta LOCATION '{tmp_path / name}'")
        sql(f"INSERT INTO {name} VALUES ({value})")
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT x FROM t")
    for old, new in (("t", "w"), ("u", "t"), ("w", "u")):
        sql(f"ALTER TABLE {old} RENAME TO {new}")
    assert next(row for row in sql("SHOW MATERIALIZED VIEWS") if row.name == "v").behind
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") == [(2,)]


def test_a_copy_of_the_files_is_another_table(sql: Workshop, tmp_path: Path) -> None:
    sql(f"CREATE TABLE t (x INT) USING delta LOCATION '{tmp_path / 'a'}'")
    sql("INSERT INTO t VALUES (1)")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    sql("INSERT INTO t VALUES (2)")
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT x FROM t")
    sql("DROP TABLE t")
    sql(f"CREATE TABLE t USING delta LOCATION '{tmp_path / 'b'}'")
    sql("INSERT INTO t VALUES (3)")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") == [(1,), (3,)]


def test_a_day_that_is_another_one_tomorrow(sql: Workshop) -> None:
    sql("CREATE TABLE t (k INT, d DATE) USING delta")
    sql("INSERT INTO t VALUES (1, current_date())")
    sql("CREATE MATERIALIZED VIEW v AS SELECT k FROM t WHERE d = 'today'")
    assert "full ('today' has another value at each refresh)" in sql("REFRESH MATERIALIZED VIEW v")[0][0]


VARYING = {
    "SELECT k FROM t WHERE d >= CAST('yes' || 'terday' AS DATE)": "'yesterday'",
    "SELECT k FROM t WHERE d < to_date('Tomorrow UTC')": "'Tomorrow UTC'",
    "SELECT k FROM t WHERE CAST(d AS TIMESTAMP) < ' now'": "' now'",
    "SELECT k FROM t WHERE d = DATE'today'": "'today'",
    "SELECT k FROM t WHERE d IN (SELECT * FROM VALUES (timestamp_ntz 'Now'))": "'Now'",
    "SELECT k FROM t WHERE d = CAST(current_catalog() AS DATE)": "current_catalog()",
    "SELECT k FROM yesterdays": "'yesterday'",
    "SELECT k, noisy_sum(x) AS s FROM t GROUP BY k": "noisy_sum()",
    "SELECT k, noisy(first(x)) AS s FROM t GROUP BY k": "noisy()",
    "SELECT k, shuffle(collect_list(x)) AS s FROM t GROUP BY k": "shuffle()",
    "SELECT k, count(*) + rand() AS s FROM t GROUP BY k": "rand()",
}
SAME = (
    "SELECT k, first(x) AS f, collect_list(x) AS l, size(collect_set(x)) + 1 AS n, max_by(x, k) AS m FROM t GROUP BY k",
    "SELECT k, first(x) OVER (PARTITION BY k ORDER BY d) AS f FROM t WHERE d >= 'epoch' AND d > '2020-01-01'",
    "SELECT k, calm(first(x)) AS f, transform(collect_list(x), e -> e + 1) AS l FROM t GROUP BY k",
)


def test_what_has_another_value_at_each_refresh(sql: Workshop) -> None:
    sql("CREATE TABLE t (k INT, x INT, d DATE) USING delta")
    sql("CREATE VIEW yesterdays AS SELECT k FROM t WHERE d = date 'yesterday'")
    sql.spark.udf.register("noisy", F.udf(lambda x: x, "int").asNondeterministic())
    sql.spark.udf.register("calm", F.udf(lambda x: x, "int"))
    sql.spark.udf.register("noisy_sum", pandas_udf(lambda x: 1.0, "double", PandasUDFType.GROUPED_AGG).asNondeterministic())
    for query, what in VARYING.items():
        said = "\n".join(row[0] for row in sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {query}"))
        assert f"in full: {what} has another value at each refresh" in said, query
    for query in SAME:
        assert "incrementally" in "\n".join(row[0] for row in sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {query}")), query


def test_an_old_version_of_another_table(sql: Workshop) -> None:
    for value in (1, 2):
        sql("CREATE TABLE t (x INT) USING delta")
        sql(f"INSERT INTO t VALUES ({value})")
        if value == 1:
            sql("CREATE MATERIALIZED VIEW v AS SELECT x FROM t VERSION AS OF 1")
            sql("DROP TABLE t")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") == [(2,)]
    assert "no change" in sql("REFRESH MATERIALIZED VIEW v")[0][0]


def test_what_is_counted_by_the_order_of_rows(sql: Workshop) -> None:
    """Spark reads the largest file first: the one that was is made small, and the other large."""
    query = "SELECT f, count(*) AS n FROM (SELECT k, first(x) AS f FROM t GROUP BY k) GROUP BY f"
    large = "array_join(transform(sequence(1, 99), e -> hash(e)), '')"
    sql("CREATE TABLE t (k INT, x INT, y STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    for values in (f"1, 1, {large}", "1, 2, ''", "2, 2, ''"):
        sql(f"INSERT INTO t SELECT {values}")
    sql(f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}")
    assert sql.batch("SELECT f, n FROM v") == [(1, 1), (2, 1)]
    sql("UPDATE t SET y = '' WHERE x = 1")
    sql(f"UPDATE t SET y = {large} WHERE x = 2 AND k = 1")
    sql("REFRESH MATERIALIZED VIEW v")
    sql("DELETE FROM t WHERE k = 1")
    said = sql("REFRESH MATERIALIZED VIEW v")[0][0]
    assert sql.batch("SELECT f, n FROM v") == [(2, 1)]
    assert "depends on the order in which rows are read" in said


ORDERED = "SELECT k, first(x) AS f, count(*) AS n FROM t GROUP BY k"
FLOATS = "SELECT k, sum(x / 3D) AS s, max(x / 3D) AS t FROM t GROUP BY k"
BY_ORDER = {
    f"SELECT f, count(*) AS m FROM ({ORDERED}) GROUP BY f": True,
    f"SELECT n, count(*) AS m FROM ({ORDERED}) GROUP BY n": False,
    f"SELECT n, count(*) AS m FROM ({ORDERED} HAVING f > 1) GROUP BY n": True,
    f"SELECT a.n, sum(a.k) AS s, count(a.k) AS c FROM ({ORDERED}) a JOIN ({ORDERED}) b ON a.f = b.n GROUP BY a.n": True,
    f"SELECT a.n, sum(a.k) AS s, count(a.k) AS c FROM ({ORDERED}) a JOIN ({ORDERED}) b ON a.k = b.n GROUP BY a.n": False,
    f"SELECT g, count(*) AS m FROM (SELECT f + 1 AS g FROM ({ORDERED}) UNION ALL SELECT k FROM t) GROUP BY g": True,
    f"SELECT g, count(*) AS m FROM (SELECT n AS g FROM ({ORDERED}) UNION ALL SELECT k FROM t) GROUP BY g": False,
    f"SELECT s > 1 AS b, count(*) AS m FROM ({FLOATS}) GROUP BY s > 1": True,
    f"SELECT t > 1 AS b, count(*) AS m FROM ({FLOATS}) GROUP BY t > 1": False,
    "SELECT f, count(*) AS m FROM (SELECT k, max_by(x, y) AS f FROM t GROUP BY k) GROUP BY f": True,
}


def test_what_depends_on_the_order_of_rows_is_known(sql: Workshop) -> None:
    sql("CREATE TABLE t (k INT, x INT, y INT) USING delta")
    plans = Plans(sql.spark)
    for query, is_by_order in BY_ORDER.items():
        assert (mergeable(plans, tree_of(plans.normal(analysed(sql.spark.sql(query))))) is None) is is_by_order, query


def test_two_views_whose_sessions_have_other_time_zones(sql: Workshop) -> None:
    sql("CREATE TABLE t (x INT, p TIMESTAMP) USING delta PARTITIONED BY (p)")
    sql("SET spark.databricks.delta.write.utcTimestampPartitionValues = false")  # as older writers do
    zones = {"v": "UTC", "w": "America/New_York"}
    for view, zone in zones.items():
        sql(f"SET TIME ZONE '{zone}'")
        sql(f"CREATE MATERIALIZED VIEW {view} REFRESH POLICY INCREMENTAL AS SELECT x, CAST(p AS STRING) AS at FROM t")
    sql("INSERT INTO t VALUES (1, TIMESTAMP'2024-01-01 00:00:00')")
    for view in zones:
        sql(f"REFRESH MATERIALIZED VIEW {view}")
    assert [sql.batch(f"SELECT * FROM {view}") for view in zones] == [[(1, "2024-01-01 00:00:00")]] * 2
