"""Views in corners: columns of * that move, ties, values that only the changes have, types that tables cannot store."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row
from pyspark.sql.udtf import UserDefinedTableFunction

from sqlext.execution.views import cost
from sqlext.execution.views.merging import mergeable
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.plans import Plans, analysed, tree_of
from sqlext.spark.row_order import with_ties_broken
from tests.integration.test_view_answers import KV, MAPPED, TU, Case, check, over_two, rows
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")

CASES: dict[str, Case] = {
    "a_quotient_of_rows_that_never_met": Case(
        (*rows("a", "k INT, x INT", "(1, 10), (2, 20)"), *rows("b", "k INT, y INT", "(1, 5), (2, 4), (9, 0)")),
        "SELECT a.k, a.x / b.y AS q FROM a JOIN b ON a.k = b.k",
        (
            "DELETE FROM a WHERE k = 1; UPDATE b SET y = 0 WHERE k = 1",
            "UPDATE b SET y = 1 WHERE k = 9; INSERT INTO a VALUES (9, 10)",
        ),
    ),
    "a_difference_of_sums_that_overflows": Case(
        rows("t", "k INT, x BIGINT", "(1, 6000000000000000000)"),
        "SELECT k, sum(x) AS s, count(x) AS c, count(*) AS n FROM t GROUP BY k",
        ("UPDATE t SET x = -x", "INSERT INTO t VALUES (2, -9223372036854775808)", "DELETE FROM t WHERE k = 2"),
    ),
    "intervals_in_an_aggregate": Case(
        rows("t", "k INT, a TIMESTAMP, b TIMESTAMP", "(1, '2024-01-01', '2024-01-01 00:00:07')"),
        "SELECT k, extract(SECOND FROM max(b - a)) AS longest, avg(k) AS m FROM t GROUP BY k",
        ("INSERT INTO t VALUES (1, '2024-01-01', '2024-01-01 00:00:09')", "DELETE FROM t WHERE extract(SECOND FROM b) = 9"),
    ),
    "keys_with_a_collation": Case(
        rows("t", "c STRING, x INT", "('a', 1)"),
        "SELECT lower(max(c)) AS c, avg(x) AS m FROM t GROUP BY c COLLATE UTF8_LCASE",
        ("INSERT INTO t VALUES ('A', 3)", "DELETE FROM t WHERE c = 'a'"),
    ),
    "the_newest_of_each_and_their_number": Case(
        rows("t", "k INT, ts INT, name STRING", "(1, 1, 'a'), (2, 1, 'a'), (2, 0, 'b')"),
        "SELECT name, count(*) AS n FROM "
        "(SELECT *, row_number() OVER (PARTITION BY k ORDER BY ts DESC) AS r FROM t) WHERE r = 1 GROUP BY name",
        ("INSERT INTO t VALUES (1, 2, 'b'), (3, 1, 'c')", "DELETE FROM t WHERE ts = 2", "UPDATE t SET name = 'd' WHERE k = 3"),
        never_full=True,
    ),
    "a_rank_beside_a_number": Case(
        rows("t", "k INT, ts INT, name STRING", "(1, 1, 'a'), (1, 1, 'b'), (1, 1, 'c'), (1, 1, 'd'), (1, 2, 'e')"),
        "SELECT name, rk FROM (SELECT *, rank() OVER (PARTITION BY k ORDER BY ts) AS rk, "
        "row_number() OVER (PARTITION BY k ORDER BY ts) AS rn FROM t) WHERE rk = 1",
        ("INSERT INTO t VALUES (1, 1, 'f')", "DELETE FROM t WHERE ts = 1 AND name > 'b'"),
    ),
    "no_value_of_a_list_below_or": Case(
        (*rows("t", "k INT, x INT", "(1, 5)"), *rows("u", "k INT", "(2)")),
        "SELECT k, x FROM t WHERE NOT (x > 100 OR k IN (SELECT k FROM u))",
        ("INSERT INTO t VALUES (NULL, 6)", "INSERT INTO u VALUES (NULL)", "DELETE FROM u WHERE k IS NULL"),
    ),
    "a_value_that_is_not_in_no_list": Case(
        (*rows("t", "k INT, x INT", "(1, 5), (2, 6)"), *rows("u", "k INT", "(2)")),
        "SELECT k, x FROM t WHERE NOT (k NOT IN (SELECT k FROM u))",
        ("INSERT INTO t VALUES (NULL, 6)", "INSERT INTO u VALUES (NULL)"),
    ),
    "no_value_of_a_list_in_a_join": Case(
        (*rows("t", "k INT, x INT", "(1, 10)"), *rows("u", "k INT, y INT", "(1, 100)"), *rows("w", "z INT", "(5)")),
        "SELECT t.k, t.x, u.y FROM t JOIN u ON t.k = u.k AND t.x NOT IN (SELECT z FROM w)",
        ("INSERT INTO w VALUES (NULL)", "INSERT INTO t VALUES (1, 11)", "DELETE FROM w WHERE z IS NULL"),
    ),
    "a_count_of_those_that_none_is": Case(
        (*rows("t", "k INT", "(1)"), *rows("u", "k INT, y INT", "(1, 200)")),
        "SELECT t.k, (SELECT count_if(u.y > 150) FROM u WHERE u.k = t.k) AS n FROM t",
        ("INSERT INTO t VALUES (2)", "DELETE FROM u", "INSERT INTO u VALUES (2, 200)"),
    ),
    "no_null_any_more": Case(
        (
            *rows("t", "k INT, x INT NOT NULL", "(1, 10)"),
            "ALTER TABLE t ALTER COLUMN x DROP NOT NULL",
            "INSERT INTO t VALUES (1, NULL)",
        ),
        "SELECT k, count(x) AS n, count(*) AS c FROM t GROUP BY k",
        ("RESTORE TABLE t TO VERSION AS OF 1",),
    ),
    "a_column_with_a_name_of_the_feed": Case(
        rows("t", "k INT, _commit_version BIGINT", "(1, 4)"),
        "SELECT k, _commit_version FROM t",
        ("INSERT INTO t VALUES (2, 5)",),
    ),
    "a_total_without_cross_joins": Case(
        (*rows("t", "x INT", "(1)"), "SET spark.sql.crossJoin.enabled = false"),
        "SELECT count(*) AS n FROM t",
        ("INSERT INTO t VALUES (2)",),
        never_full=True,
    ),
    "another_order_of_map_entries": Case(
        rows("t", "k INT, m MAP<STRING, INT>", "(1, map('a', 1, 'b', 2)), (2, map('a', 1))"),
        "SELECT k, to_json(m) AS j, map_keys(m) AS names FROM t",
        ("UPDATE t SET m = map('b', 2, 'a', 1) WHERE k = 1", "INSERT INTO t VALUES (3, map('c', 3))"),
        never_full=True,
    ),
    "lateral_entries_of_a_map": Case(
        rows("t", "k INT, m MAP<STRING, INT>", "(1, map('a', 1, 'b', 2)), (2, map('a', 1))"),
        "SELECT t.k, e.key, e.value FROM t, LATERAL explode(t.m) e",
        ("INSERT INTO t VALUES (3, map('c', 3)), (4, map())", "DELETE FROM t WHERE k = 1"),
        never_full=True,
    ),
    "lateral_variants": Case(
        rows("t", "k INT, v VARIANT", """(1, parse_json('["x", "y"]')), (2, parse_json('[2]'))"""),
        "SELECT t.k, e.pos, CAST(e.value AS STRING) AS s FROM t, LATERAL variant_explode(t.v) e",
        ("INSERT INTO t VALUES (3, parse_json('[3]'))", "DELETE FROM t WHERE k = 1"),
        never_full=True,
    ),
    "lateral_of_one_row": Case(
        rows("t", "k INT, d DOUBLE", "(1, -0.0D), (2, 0.0D)"),
        "SELECT t.k, l.s FROM t, LATERAL (SELECT CAST(t.d AS STRING) AS s) l",
        ("INSERT INTO t VALUES (3, 0.0D), (4, -0.0D)", "DELETE FROM t WHERE k = 1"),
        never_full=True,
    ),
    "a_subquery_of_a_maps_value": Case(
        (*rows("t", "k INT, m MAP<STRING, INT>", "(1, map('a', 1)), (2, map('a', 2))"), *rows("u", "k INT, y INT", "(1, 100)")),
        "SELECT t.k, (SELECT sum(u.y) FROM u WHERE u.k <= t.m['a']) AS s FROM t",
        ("INSERT INTO u VALUES (2, 7), (1, 1)", "INSERT INTO t VALUES (3, map('a', 1))", "DELETE FROM u WHERE k = 1"),
        never_full=True,
    ),
    "in_a_distinct_list": over_two("SELECT k, x FROM t WHERE k IN (SELECT DISTINCT k FROM u)", never_full=True),
    "in_a_list_of_two": over_two("SELECT k, x FROM t WHERE x IN (SELECT k FROM u UNION SELECT y / 10 FROM u)", never_full=True),
    "in_a_list_in_a_list": over_two(
        "SELECT k, x FROM t WHERE k IN (SELECT k FROM u WHERE y IN (SELECT DISTINCT x * 10 FROM t))", never_full=True
    ),
    "existence_of_any": over_two("SELECT k, x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE y > 300)"),
    "existence_of_none": Case(
        TU,
        "SELECT k, x FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE y = 8)",
        ("INSERT INTO t VALUES (1, 30), (4, 1)", "DELETE FROM t WHERE x = 20"),
        never_full=True,
    ),
    "existence_shown": Case(
        TU,
        "SELECT k, EXISTS (SELECT 1 FROM u WHERE y > 300) AS e FROM t",
        ("INSERT INTO t VALUES (1, 30), (4, 1)", "DELETE FROM t WHERE x = 20"),
        never_full=True,
    ),
    "more_than_the_mean_of_different_ones": Case(
        TU,
        "SELECT k, x FROM t WHERE x * 10 > (SELECT avg(y) FROM (SELECT DISTINCT y FROM u INTERSECT SELECT y FROM u WHERE EXISTS "
        "(SELECT 1 FROM u w WHERE w.k = u.k)))",
        ("INSERT INTO t VALUES (1, 30), (4, 1)", "DELETE FROM t WHERE x = 20"),
        never_full=True,
    ),
    "more_than_a_mean_that_changes": over_two(
        "SELECT k, x FROM t WHERE x * 10 > (SELECT avg(y) FROM (SELECT DISTINCT y FROM u))"
    ),
    "an_offset_without_an_order": Case(
        KV, "SELECT count(*) AS n FROM (SELECT k FROM t OFFSET 1)", ("DELETE FROM t WHERE k = 1", "INSERT INTO t VALUES (3, 4)")
    ),
}


@pytest.mark.parametrize("partials", [True, False], ids=["partials", "no_partials"])
@pytest.mark.parametrize("name", CASES)
def test_a_view_answers_as_its_query(sql: Workshop, name: str, partials: bool) -> None:
    with patch.object(cost, "PARTIALS_BYTES", 0 if partials else cost.PARTIALS_BYTES):
        check(sql, CASES[name])


def refused(sql: Workshop, statement: str) -> str:
    with pytest.raises(PySparkException) as caught:
        sql(statement)
    return str(caught.value)


@pytest.mark.parametrize(
    ("setup", "change"),
    [
        ((), "ALTER TABLE t ALTER COLUMN x FIRST"),
        ((), "CREATE OR REPLACE TABLE t (x INT, k INT) USING delta"),
        ((MAPPED.format("false"),), "ALTER TABLE t DROP COLUMN x; ALTER TABLE t ADD COLUMN z INT"),
    ],
    ids=["moved", "replaced", "another"],
)
@pytest.mark.parametrize("constraint", ["", "(CONSTRAINT c EXPECT (k > 0) ON VIOLATION DROP ROW)"], ids=["plain", "constraint"])
def test_columns_of_a_star_that_move(sql: Workshop, setup: tuple[str, ...], change: str, constraint: str) -> None:
    """By position, the values of one column would go into another."""
    for statement in rows("t", "k INT, x INT", "(1, 10)", *setup):
        sql(statement)
    sql(f"CREATE MATERIALIZED VIEW v {constraint} AS SELECT * FROM t")
    sql("INSERT INTO t (k, x) VALUES (2, 20)")
    sql("REFRESH MATERIALIZED VIEW v")
    for statement in change.split("; "):
        sql(statement)
    said = refused(sql, "REFRESH MATERIALIZED VIEW v")
    assert "but the view was made of k, x" in said
    assert sql.batch("SELECT k, x FROM v") == [(1, 10), (2, 20)]
    sql(f"CREATE OR REPLACE MATERIALIZED VIEW v {constraint} AS SELECT * FROM t")
    assert sql.batch("SELECT * FROM v") == sql.batch("SELECT * FROM t")


def test_lengths_of_columns_are_checked(sql: Workshop) -> None:
    for statement in rows("t", "k INT, s STRING", "(1, 'abc'), (2, 'ab'), (3, NULL)"):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v (k INT, s VARCHAR(3), c CHAR(4)) AS SELECT k, s, s FROM t")
    assert sql.batch("SELECT k, s, c FROM v") == [(1, "abc", "abc "), (2, "ab", "ab  "), (3, None, None)]
    assert "length limitation" in refused(sql, "CREATE MATERIALIZED VIEW w (s CHAR(2)) AS SELECT s FROM t")
    sql("INSERT INTO t VALUES (4, 'x  ')")
    sql("REFRESH MATERIALIZED VIEW v")
    sql("INSERT INTO t VALUES (5, 'abcd')")
    assert "length limitation" in refused(sql, "REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT s, c FROM v WHERE k > 3") == [("x  ", "x   ")]
    sql("DELETE FROM t WHERE k = 5")
    sql("UPDATE t SET s = 'y' WHERE k = 4")
    assert "changed rows" in sql("REFRESH MATERIALIZED VIEW v")[0][0]
    assert sql.batch("SELECT s, c FROM v WHERE k > 3") == [("y", "y   ")]


def test_a_column_that_only_a_broken_view_used(sql: Workshop) -> None:
    for statement in rows("t", "k INT, y INT", "(1, 1)", MAPPED.format("false")):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW a REFRESH POLICY INCREMENTAL AS SELECT k FROM t")
    sql("CREATE MATERIALIZED VIEW b REFRESH POLICY INCREMENTAL AS SELECT y FROM t")
    sql("ALTER TABLE t DROP COLUMN y")
    for key in (2, 3):
        sql(f"INSERT INTO t VALUES ({key})")
        assert "append" in sql("REFRESH MATERIALIZED VIEW a")[0][0]
        assert "y" in refused(sql, "REFRESH MATERIALIZED VIEW b")
    assert sql.batch("SELECT k FROM a") == [(1,), (2,), (3,)]


def test_a_lost_partition_value_in_a_refresh_with_wider_types(sql: Workshop) -> None:
    for statement in rows("t", "k STRING, x INT", "('a', 1)", "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v COMMENT 'said' PARTITIONED BY (k) REFRESH POLICY INCREMENTAL AS SELECT k, x FROM t")
    sql("ALTER TABLE t ALTER COLUMN x TYPE BIGINT")
    sql("INSERT INTO t VALUES ('', 2)")
    assert "does not keep in a partition" in " ".join(refused(sql, "REFRESH MATERIALIZED VIEW v").split())
    sql("UPDATE t SET k = 'b' WHERE k = ''")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT k, x FROM v") == [("a", 1), ("b", 2)]
    assert sql.spark.table("v").schema["x"].dataType.simpleString() == "bigint"


def test_a_view_keeps_not_null_when_a_column_gets_a_wider_type(sql: Workshop) -> None:
    for statement in rows("t", "k INT, x INT", "(1, 10), (2, 20)", "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v (k NOT NULL, x NOT NULL) REFRESH POLICY INCREMENTAL AS SELECT k, x FROM t")
    sql("ALTER TABLE t ALTER COLUMN x TYPE BIGINT")
    sql("INSERT INTO t VALUES (3, 10000000000)")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT k, x FROM v") == [(1, 10), (2, 20), (3, 10000000000)]
    sql("INSERT INTO t VALUES (NULL, 4)")
    with pytest.raises(SPARK_ERRORS, match="NOT NULL constraint violated for column: k"):
        sql("REFRESH MATERIALIZED VIEW v")


def test_a_view_over_one_that_was_compacted(sql: Workshop) -> None:
    for statement in KV:
        sql(statement)
    sql("CREATE MATERIALIZED VIEW up REFRESH POLICY INCREMENTAL AS SELECT k, x FROM t")
    sql("INSERT INTO t VALUES (5, 50)")
    sql("REFRESH MATERIALIZED VIEW up")
    sql("CREATE MATERIALIZED VIEW down REFRESH POLICY INCREMENTAL AS SELECT k, sum(x) AS s FROM up GROUP BY k")
    sql("OPTIMIZE up")
    sql("REFRESH MATERIALIZED VIEW down")
    said = " ".join(str(row[0]) for row in sql("REFRESH MATERIALIZED VIEW down CASCADE"))
    assert "no change" in said
    assert "full" not in said
    assert sql.commits("down")[-1]["done"] == "no change"


TOP = "SELECT name, count(*) AS n FROM (SELECT *, {} AS r FROM t) WHERE r = 1 GROUP BY name"
FIRST = "SELECT name, count(*) AS n FROM (SELECT * FROM t {}) GROUP BY name"
TIES = {
    TOP.format("row_number() OVER (PARTITION BY k ORDER BY ts)"): False,
    TOP.format("first(ts) OVER (PARTITION BY k)"): False,
    TOP.format("lag(ts) OVER (PARTITION BY k ORDER BY ts)"): False,
    TOP.format("rank() OVER (PARTITION BY k ORDER BY ts)"): False,
    TOP.format("sum(ts) OVER (PARTITION BY k ORDER BY ts)"): False,
    TOP.format("sum(ts) OVER (PARTITION BY k ORDER BY ts ROWS 1 PRECEDING)"): False,
    TOP.format("sum(ts) OVER (PARTITION BY k ORDER BY ts) + row_number() OVER (PARTITION BY k ORDER BY ts)"): True,
    TOP.format("first(name) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)"): True,
    TOP.format("row_number() OVER (PARTITION BY k ORDER BY ts) + cume_dist() OVER (PARTITION BY k ORDER BY ts)"): True,
    TOP.format("row_number() OVER (PARTITION BY k ORDER BY ts) + rank() OVER (PARTITION BY k ORDER BY ts)"): True,
    "SELECT r, count(*) AS n FROM (SELECT m, row_number() OVER (PARTITION BY k ORDER BY ts) AS r FROM t) GROUP BY r": True,
    "SELECT m, count(*) AS n FROM (SELECT avg(b) AS m FROM t GROUP BY k) GROUP BY m": True,
    "SELECT m, count(*) AS n FROM (SELECT avg(ts) AS m FROM t GROUP BY k) GROUP BY m": False,
}


COLLATIONS = "SET spark.databricks.delta.schema.typeCheck.enabled = false"  # or Delta has no columns with any
COLLATED = {
    "SELECT k, max(c) AS m FROM t GROUP BY k": False,
    "SELECT m, count(*) AS n FROM (SELECT max(ts) AS m FROM t GROUP BY c) GROUP BY m": False,
    "SELECT m, count(*) AS n FROM (SELECT ascii(max(c)) AS m FROM t GROUP BY k) GROUP BY m": True,
    "SELECT m, count(*) AS n FROM (SELECT ascii(c) AS m FROM t GROUP BY c) GROUP BY m": True,
    "SELECT x, count(*) AS n FROM (SELECT x, c, row_number() OVER (PARTITION BY k ORDER BY c) AS r FROM t) WHERE r = 1 "
    "GROUP BY x": False,
    "SELECT x, count(*) AS n FROM (SELECT x, c, row_number() OVER (PARTITION BY c ORDER BY k) AS r FROM t) WHERE r = 1 "
    "GROUP BY x": False,
    "SELECT m, count(*) AS n FROM (SELECT ascii(max(c) OVER (PARTITION BY k)) AS m, k, c FROM t) GROUP BY m": False,
    "SELECT r, count(*) AS n FROM (SELECT l, row_number() OVER (PARTITION BY k ORDER BY l) AS r FROM t) GROUP BY r": True,
    "SELECT x, count(*) AS n FROM (SELECT x, c FROM t ORDER BY c LIMIT 3) GROUP BY x": False,
    "SELECT c, count(*) AS n FROM t GROUP BY c": True,
}


def test_ties_of_texts_with_a_collation_are_broken_or_known(sql: Workshop) -> None:
    sql(COLLATIONS)
    columns = "k INT, ts INT, x INT, name STRING, c STRING COLLATE UTF8_LCASE, l ARRAY<STRING COLLATE UTF8_LCASE>"
    sql(f"CREATE TABLE t ({columns}) USING delta")
    plans = Plans(sql.spark)
    for query, is_by_order in COLLATED.items():
        plan = with_ties_broken(sql.spark, analysed(sql.spark.sql(query)))
        assert (mergeable(plans, tree_of(plans.normal(plan))) is None) is is_by_order, query
        assert plans.frame(plan).collect() == []


def test_ties_are_broken_or_known(sql: Workshop) -> None:
    """A map has no order, and where a window ends with the rows that are equal, they must stay equal."""
    sql("CREATE TABLE t (k INT, ts INT, b BIGINT, name STRING, m MAP<STRING, INT>) USING delta")
    plans = Plans(sql.spark)
    for query, is_by_order in TIES.items():
        text = query if " m" in query else query.replace("SELECT *,", "SELECT k, ts, name,")
        plan = with_ties_broken(sql.spark, analysed(sql.spark.sql(text)))
        assert (mergeable(plans, tree_of(plans.normal(plan))) is None) is is_by_order, query
        assert plans.frame(plan).collect() == []


def test_broken_ties_leave_each_place_to_one_row(sql: Workshop) -> None:
    sql("CREATE TABLE t (k INT, ts INT, name STRING) USING delta")
    sql("INSERT INTO t VALUES (1, 1, 'b'), (1, 1, 'a'), (1, 0, 'z'), (2, 5, 'c'), (2, 5, 'c')")
    sql("CREATE MATERIALIZED VIEW v AS SELECT *, row_number() OVER (PARTITION BY k ORDER BY ts DESC) AS r FROM t")
    assert sql.batch("SELECT k, ts, name, r FROM v") == [
        (1, 0, "z", 3),
        (1, 1, "a", 1),
        (1, 1, "b", 2),
        (2, 5, "c", 1),
        (2, 5, "c", 2),
    ]
    sql("CREATE MATERIALIZED VIEW w AS SELECT name FROM t ORDER BY k, ts LIMIT 2")
    assert sql.batch("SELECT name FROM w") == [("a",), ("z",)]


def test_rows_that_are_read_in_any_order_are_not_taken_out_by_value(sql: Workshop) -> None:
    """The old row of a group would be computed again, and could be one of another group."""
    for statement in rows("t", "k INT, x INT", "(1, 1), (1, 2), (2, 2)"):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT first(x) AS f FROM t GROUP BY k")
    sql("DELETE FROM t WHERE k = 1")
    assert ": full" in str(sql("REFRESH MATERIALIZED VIEW v")[0][0])
    assert sql.batch("SELECT * FROM v") == [(2,)]


def test_an_old_row_that_is_computed_again_does_not_cancel_out_a_new_one(sql: Workshop) -> None:
    """Spark reads the largest file first: the one that was is made small, and the other large."""
    large = "array_join(transform(sequence(1, 99), e -> hash(e)), '')"
    sql("CREATE TABLE t (k INT, x INT, y STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    for values in (f"1, 1, {large}", "1, 2, ''"):
        sql(f"INSERT INTO t SELECT {values}")
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT first(x) AS f FROM t GROUP BY k")
    assert sql.batch("SELECT * FROM v") == [(1,)]
    sql("UPDATE t SET y = '' WHERE x = 1")
    sql(f"UPDATE t SET y = {large} WHERE x = 2")
    sql("REFRESH MATERIALIZED VIEW v")
    sql("DELETE FROM t WHERE k = 1")
    sql("INSERT INTO t VALUES (2, 2, ''), (3, 7, '')")
    said = str(sql("REFRESH MATERIALIZED VIEW v")[0][0])
    assert sql.batch("SELECT * FROM v") == [(2,), (7,)]
    assert "depend on the order in which others are read" in said


def test_rows_are_added_beside_others_that_are_read_in_any_order(sql: Workshop) -> None:
    for statement in KV:
        sql(statement)
    sql("CREATE TABLE u USING delta AS SELECT * FROM VALUES (1, 0.1D), (1, 0.2D), (2, 0.3D) AS u(k, y)")
    query = "SELECT t.k, t.x, s FROM t JOIN (SELECT k, sum(y) AS s FROM u GROUP BY k) USING (k)"
    sql(f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}")
    sql("INSERT INTO t VALUES (1, 12)")
    assert ": append" in str(sql("REFRESH MATERIALIZED VIEW v")[0][0])
    assert sql.batch("SELECT k, x FROM v") == [(1, 10), (1, 11), (1, 12), (2, 20)]


def test_a_group_is_called_as_one_of_its_rows(sql: Workshop) -> None:
    """With a collation that takes 'a' for 'A', changed rows may have another key than the rows that stay."""
    for statement in (COLLATIONS, *rows("t", "c STRING COLLATE UTF8_LCASE, x INT", "('A', 1), ('b', 2)")):
        sql(statement)
    query = "SELECT c, count(*) AS n, sum(x) AS s, count(x) AS m FROM t GROUP BY c"
    sql(f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}")
    sql("INSERT INTO t VALUES ('a', 5)")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT lower(c), n, s FROM v") == [("a", 2, 6), ("b", 1, 2)]
    sql("DELETE FROM t WHERE collate(c, 'UTF8_BINARY') = 'a'")
    assert ": touched groups" in str(sql("REFRESH MATERIALIZED VIEW v")[0][0])
    assert sql.batch("SELECT c, n, s, m FROM v") == [("A", 1, 1, 1), ("b", 1, 2, 1)]


def test_a_sql_view_that_is_made_anew_under_other_settings(sql: Workshop) -> None:
    sql("SET TIME ZONE 'UTC'")
    for statement in rows("t", "k INT, ts TIMESTAMP", "(1, TIMESTAMP'2024-01-01 00:00:00')"):
        sql(statement)
    sql("CREATE VIEW sv AS SELECT k, CAST(ts AS STRING) AS s FROM t")
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k, s FROM sv")
    sql("SET TIME ZONE 'America/New_York'")
    sql("CREATE OR REPLACE VIEW sv AS SELECT k, CAST(ts AS STRING) AS s FROM t")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") == [(1, "2023-12-31 19:00:00")]


def test_a_view_whose_column_another_has_dropped_and_added(sql: Workshop) -> None:
    """No file has changed, and all its values are gone."""
    for statement in KV:
        sql(statement)
    mapped = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    sql(f"CREATE MATERIALIZED VIEW v {mapped} REFRESH POLICY INCREMENTAL AS SELECT k, sum(x) AS s FROM t GROUP BY k")
    sql("ALTER TABLE v DROP COLUMN s")
    sql("ALTER TABLE v ADD COLUMN s BIGINT")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") == sql.batch("SELECT k, sum(x) AS s FROM t GROUP BY k")


@pytest.mark.parametrize("partials", [True, False], ids=["partials", "no_partials"])
def test_a_sum_of_a_sql_view_overflows_as_it_says(sql: Workshop, partials: bool) -> None:
    """The SQL view was made under ANSI mode, in which an overflow is an error; the view's session has another mode."""
    for statement in rows("t", "k INT, x BIGINT", "(1, 9223372036854775807), (2, 1)"):
        sql(statement)
    sql("SET spark.sql.ansi.enabled = true")
    sql("CREATE VIEW sv AS SELECT k, sum(x) AS s, count(x) AS c, count(*) AS n FROM t GROUP BY k")
    sql("SET spark.sql.ansi.enabled = false")
    with patch.object(cost, "PARTIALS_BYTES", 0 if partials else cost.PARTIALS_BYTES):
        sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k, s, c, n FROM sv")
        sql("INSERT INTO t VALUES (1, 1)")
        with pytest.raises(SPARK_ERRORS, match="overflow"):
            sql("REFRESH MATERIALIZED VIEW v")
        sql("UPDATE t SET x = 2 WHERE k = 1")
        assert ": full" not in str(sql("REFRESH MATERIALIZED VIEW v")[0][0])
    assert sql.batch("SELECT k, s FROM v") == [(1, 4), (2, 1)]


def test_a_query_that_spark_does_not_bring_into_plain_operators(sql: Workshop) -> None:
    for statement in KV:
        sql(statement)
    with patch.object(Plans, "normal", side_effect=AnalysisException("no such operator")):
        sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k, x FROM t WHERE x > 5")
        sql("INSERT INTO t VALUES (3, 30), (4, 4)")
        assert "plain operators: no such operator" in str(sql("REFRESH MATERIALIZED VIEW v")[0][0])
    assert sql.batch("SELECT * FROM v") == [(1, 10), (1, 11), (2, 20), (3, 30)]


def test_a_table_function_from_python_reads_all_rows_again(sql: Workshop) -> None:
    """What it gives for a row may depend on those before."""

    class Total:
        def __init__(self) -> None:
            self.total = 0

        def eval(self, row: Row) -> None:
            self.total += row["x"]

        def terminate(self) -> Iterator[tuple[int]]:
            yield (self.total,)

    for statement in KV:
        sql(statement)
    sql.spark.udtf.register("total", UserDefinedTableFunction(Total, returnType="s INT", deterministic=True))
    query = "SELECT * FROM total(TABLE(t) PARTITION BY k)"
    sql(f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}")
    sql("INSERT INTO t VALUES (1, 12)")
    assert "the table function total(..)" in str(sql("REFRESH MATERIALIZED VIEW v")[0][0])
    assert sql.batch("SELECT * FROM v") == sql.batch(query) == [(20,), (33,), (5,)]
