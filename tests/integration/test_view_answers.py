"""Queries and changes at which an incremental refresh could answer wrongly: each view against its query after each step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import VariantType

from tests.differential.compare import Leniency, Result, difference
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")

FEED = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
MAPPED = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = '{}')"
WIDENED = "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"


@dataclass(frozen=True)
class Case:
    """A view and what is done to its sources.

    Attributes:
        before: the statements before the view is created.
        query: the view's.
        steps: the statements before each refresh, separated by `;`.
        clauses: of the view: its column list and the like.
        never_full: whether a refresh in full is a failure.
    """

    before: tuple[str, ...]
    query: str
    steps: tuple[str, ...]
    clauses: str = ""
    never_full: bool = False


def rows(table: str, columns: str, values: str, properties: str = "") -> tuple[str, ...]:
    return (f"CREATE TABLE {table} ({columns}) USING delta {properties}", f"INSERT INTO {table} VALUES {values}")


KV = rows("t", "k INT, x INT", "(1, 10), (1, 11), (2, 20), (NULL, 5)")
TU = (*KV, *rows("u", "k INT, y INT", "(1, 100), (2, 200), (3, 300), (NULL, 7)"))
CHANGES = (
    "INSERT INTO t VALUES (1, 12), (3, 30)",
    "DELETE FROM t WHERE k = 1; UPDATE u SET y = y + 1 WHERE k >= 2; INSERT INTO u VALUES (4, 400)",
    "INSERT INTO t VALUES (1, 10), (NULL, 6); DELETE FROM u WHERE k = 3; UPDATE u SET k = 1 WHERE k IS NULL",
)


def over_two(query: str, clauses: str = "", never_full: bool = False) -> Case:
    return Case(TU, query, CHANGES, clauses, never_full)


NOT_NULL = rows("t", "k INT, x INT NOT NULL", "(1, 10), (1, 11), (2, 20)")
AT = rows("t", "k INT, at TIMESTAMP", "(1, TIMESTAMP'2024-01-01 10:00:00'), (1, TIMESTAMP'2024-01-01 10:20:00')")

CASES: dict[str, Case] = {
    # aggregates that are added to
    "global_sum_of_required": Case(
        NOT_NULL, "SELECT count(*) AS n, sum(x) AS s FROM t", ("DELETE FROM t", "INSERT INTO t VALUES (1, 5)")
    ),
    "global_count_and_sum": over_two("SELECT count(*) AS n, sum(x) AS s, count(x) AS c FROM t"),
    "fine_decimals": Case(
        rows("t", "k INT, x DECIMAL(17, 10)", "(1, 0.0000000001), (2, 1.0000000003)"),
        "SELECT k, sum(x) AS s, count(x) AS c, count(*) AS n FROM t GROUP BY k",
        (
            "INSERT INTO t VALUES (1, 0.0000000001)",
            "INSERT INTO t VALUES (1, 0.0000000002), (3, 5)",
            "DELETE FROM t WHERE x = 0.0000000002",
        ),
    ),
    "wide_decimals": Case(
        rows("t", "k INT, x DECIMAL(12, 2)", "(1, 1.25), (2, 2.5)"),
        "SELECT k, sum(x) AS s, count(x) AS c, count(*) AS n FROM t GROUP BY k",
        ("INSERT INTO t VALUES (1, 0.25)", "DELETE FROM t WHERE x = 1.25"),
    ),
    "counts_of_all_kinds": over_two(
        "SELECT k, count(*) AS n, count(1) AS m, count(NULL) AS z, count(k, x) AS kx, count(x) FILTER (WHERE x > 10) AS f, "
        "sum(x) AS s, sum(x) AS s2, count(x) AS c, k AS again FROM t GROUP BY k"
    ),
    "extremes_only": over_two("SELECT k, min(x) AS a, max(x) AS b, max(struct(x, k)) AS c FROM t GROUP BY k"),
    "bytes": Case(
        rows("t", "k TINYINT, x TINYINT, y SMALLINT", "(1, 127, 32767), (1, 127, 32767)"),
        "SELECT k, count(*) AS n, sum(x) AS s, count(x) AS c, sum(y) AS sy, count(y) AS cy FROM t GROUP BY k",
        ("INSERT INTO t VALUES (1, 127, 32767), (1, NULL, NULL)", "DELETE FROM t WHERE x = 127"),
    ),
    "session_windows": Case(
        AT,
        "SELECT session_window(at, '15 minutes') AS w, count(*) AS n FROM t GROUP BY session_window(at, '15 minutes')",
        ("INSERT INTO t VALUES (1, TIMESTAMP'2024-01-01 10:10:00')", "DELETE FROM t WHERE at = TIMESTAMP'2024-01-01 10:10:00'"),
    ),
    "session_windows_by_key": Case(
        AT,
        "SELECT k, session_window.start AS s, count(*) AS n FROM t GROUP BY k, session_window(at, '15 minutes')",
        ("INSERT INTO t VALUES (1, TIMESTAMP'2024-01-01 10:10:00')", "DELETE FROM t WHERE at = TIMESTAMP'2024-01-01 10:10:00'"),
    ),
    "sliding_windows": Case(
        AT,
        "SELECT window.start AS s, count(*) AS n FROM t GROUP BY window(at, '20 minutes', '10 minutes')",
        ("INSERT INTO t VALUES (1, TIMESTAMP'2024-01-01 10:10:00')", "DELETE FROM t WHERE at = TIMESTAMP'2024-01-01 10:10:00'"),
    ),
    # keys
    "map_key": Case(
        rows("t", "m MAP<STRING, INT>, x INT", "(map('a', 1), 1), (map('a', 1), 2), (map('b', 2), 3)"),
        "SELECT m, count(*) AS n, avg(x) AS mean FROM t GROUP BY m",
        ("INSERT INTO t VALUES (map('a', 1), 4), (map('c', 1), 5)", "DELETE FROM t WHERE x < 3"),
    ),
    "char_key": Case(
        rows("t", "c CHAR(4), v VARCHAR(4), x INT", "('a', 'b', 1), ('a', 'b ', 2), ('cc', NULL, 3)"),
        "SELECT c, v, count(*) AS n, avg(x) AS mean FROM t GROUP BY c, v",
        ("INSERT INTO t VALUES ('a', 'b', 3), ('d', 'd', 4)", "DELETE FROM t WHERE c = 'a'"),
    ),
    "char_rows": Case(
        rows("t", "c CHAR(4), v VARCHAR(4), x INT", "('a', 'b', 1), ('a', 'b ', 2), ('cc', NULL, 3)"),
        "SELECT c, v, c = 'a' AS same FROM t",
        ("INSERT INTO t VALUES ('a', 'b', 3), ('d', 'd', 4)", "DELETE FROM t WHERE c = 'a'"),
    ),
    "nan_alone": Case(  # such rows are kept with bounds that leave out NaN
        rows("t", "k INT, d DOUBLE, f FLOAT", "(1, 1.0, 1.0)"),
        "SELECT k, d, f FROM t WHERE d > 0 OR f = FLOAT('NaN')",
        ("INSERT INTO t VALUES (2, DOUBLE('NaN'), -1.0)", "UPDATE t SET d = -1, f = FLOAT('NaN')", "DELETE FROM t WHERE k = 2"),
        never_full=True,
    ),
    "double_keys": Case(
        rows("t", "d DOUBLE, a ARRAY<DOUBLE>, x INT", "(0.0, array(0.0D), 1), (DOUBLE('NaN'), array(DOUBLE('NaN')), 2)"),
        "SELECT d, a, count(*) AS n, avg(x) AS mean FROM t GROUP BY d, a",
        ("INSERT INTO t VALUES (-0.0D, array(-0.0D), 3), (DOUBLE('NaN'), array(DOUBLE('NaN')), 4)", "DELETE FROM t WHERE x < 3"),
    ),
    # identities of rows
    "null_in_struct_with_double": Case(
        rows(
            "t",
            "k INT, s STRUCT<d: DOUBLE, a: STRING, b: STRING>",
            "(1, struct(1.0D, 'null', 'b')), (2, struct(1.0D, 'x, y', 'z'))",
        ),
        "SELECT k, s FROM t",
        (
            "UPDATE t SET s = named_struct('d', 1.0D, 'a', NULL, 'b', 'b') WHERE k = 1",
            "UPDATE t SET s = named_struct('d', 1.0D, 'a', 'x', 'b', 'y, z') WHERE k = 2",
        ),
    ),
    "microseconds_in_map": Case(
        rows("t", "k INT, m MAP<STRING, TIMESTAMP>", "(1, map('a', TIMESTAMP'2024-01-01 00:00:00.000001'))"),
        "SELECT k, m FROM t",
        ("UPDATE t SET m = map('a', TIMESTAMP'2024-01-01 00:00:00.000002') WHERE k = 1",),
    ),
    "struct_of_nulls_beside_map": Case(
        rows("t", "k INT, m STRUCT<m: MAP<STRING, INT>, a: INT>", "(1, named_struct('m', map('a', NULL), 'a', NULL)), (2, NULL)"),
        "SELECT k, m FROM t",
        (
            "UPDATE t SET m = named_struct('m', map(), 'a', NULL) WHERE k = 1",
            "UPDATE t SET m = named_struct('m', NULL, 'a', NULL)",
        ),
    ),
    "variants": Case(
        ("CREATE TABLE t (k INT, v VARIANT) USING delta", "INSERT INTO t SELECT 1, '2024-01-01'::VARIANT"),
        "SELECT k, v FROM t",
        ("UPDATE t SET v = DATE'2024-01-01'::VARIANT", "UPDATE t SET v = 1.0D::VARIANT", "UPDATE t SET v = 1.0BD::VARIANT"),
    ),
    "binary_and_repeated": Case(
        rows("t", "k INT, b BINARY", "(1, X'00FF'), (1, X'00FF'), (1, X'00FF'), (2, X'')"),
        "SELECT k, b FROM t",
        ("INSERT INTO t VALUES (1, X'00FF')", "DELETE FROM t WHERE k = 2; UPDATE t SET k = 3 WHERE k = 1", "DELETE FROM t"),
    ),
    # where the plan's leaves are more than columns
    "file_metadata": Case(KV, "SELECT k, _metadata.file_size > 0 AS has FROM t", ("INSERT INTO t VALUES (7, 7)",)),
    "commit_version": Case(
        rows("t", "k INT", "(1), (2)", "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"),
        "SELECT k, _metadata.row_commit_version AS at FROM t",
        ("INSERT INTO t VALUES (7)", "UPDATE t SET k = 8 WHERE k = 1"),
    ),
    "columns_of_a_feed": Case(
        rows("t", "k INT, _change_type STRING, _commit_version BIGINT", "(1, 'insert', 4)"),
        "SELECT k, _change_type, _commit_version FROM t",
        ("INSERT INTO t VALUES (2, 'delete', 5)",),
    ),
    "pinned": Case(
        (*KV, "INSERT INTO t VALUES (9, 9)"),
        "SELECT n.k, n.x, o.x AS before FROM t n FULL JOIN (SELECT k, x FROM t VERSION AS OF 1) o ON n.k = o.k",
        ("INSERT INTO t VALUES (7, 7), (2, 4)", "DELETE FROM t WHERE k = 2"),
    ),
    "pinned_column_that_is_gone": Case(
        rows("t", "k INT, x INT, y INT", "(1, 2, 3)", MAPPED.format("false")),
        "SELECT n.k, n.x, o.y FROM t n JOIN t VERSION AS OF 1 o ON n.k = o.k",
        ("ALTER TABLE t DROP COLUMN y; INSERT INTO t VALUES (1, 4)",),
    ),
    # what happens to the tables
    "column_dropped_and_added": Case(
        rows("t", "k INT, x INT", "(1, 10), (2, 20)", MAPPED.format("false")),
        "SELECT k, x FROM t",
        ("ALTER TABLE t DROP COLUMN x; ALTER TABLE t ADD COLUMN x INT",),
    ),
    "column_dropped_and_added_feed": Case(
        rows("t", "k INT, x INT", "(1, 10), (2, 20)", MAPPED.format("true")),
        "SELECT k, x FROM t",
        ("ALTER TABLE t DROP COLUMN x; ALTER TABLE t ADD COLUMN x INT; INSERT INTO t VALUES (3, 30)",),
    ),
    "columns_swapped": Case(
        rows("t", "k INT, x INT", "(1, 10), (2, 20)", MAPPED.format("false")),
        "SELECT k, x FROM t",
        ("ALTER TABLE t RENAME COLUMN x TO y; ALTER TABLE t RENAME COLUMN k TO x; ALTER TABLE t RENAME COLUMN y TO k",),
    ),
    "column_widened": Case(
        rows("t", "k INT, x INT", "(1, 10), (2, 20)", WIDENED),
        "SELECT k, x FROM t",
        ("ALTER TABLE t ALTER COLUMN x TYPE BIGINT; INSERT INTO t VALUES (3, 10000000000)", "INSERT INTO t VALUES (4, 40)"),
    ),
    "column_widened_as_text": Case(
        rows("t", "k INT, x INT", "(1, 10), (2, 20)", WIDENED),
        "SELECT k, CAST(x AS STRING) AS s FROM t",
        ("ALTER TABLE t ALTER COLUMN x TYPE DOUBLE", "INSERT INTO t VALUES (3, 1.5)"),
    ),
    "column_added_of_natural_join": Case(
        (*rows("t", "k INT, x INT", "(1, 10), (2, 20)"), *rows("u", "k INT, y INT", "(1, 10), (2, 30)")),
        "SELECT k FROM t NATURAL JOIN u",
        ("ALTER TABLE t ADD COLUMN y INT; INSERT INTO t VALUES (2, 5, 30)",),
    ),
    "column_added_to_all": Case(
        KV, "SELECT k, size(array(*)) AS n FROM t", ("ALTER TABLE t ADD COLUMN y INT; INSERT INTO t VALUES (2, 5, 30)",)
    ),
    "column_added_in_the_middle": Case(
        KV, "SELECT k, x FROM t", ("ALTER TABLE t ADD COLUMN y INT AFTER k; INSERT INTO t VALUES (2, 5, 30)",), never_full=True
    ),
    "nested_field_added": Case(
        rows("t", "k INT, s STRUCT<a: INT>", "(1, struct(1))"),
        "SELECT k, s.a AS a FROM t",
        ("ALTER TABLE t ADD COLUMN s.b INT; INSERT INTO t VALUES (2, struct(5, 30))",),
    ),
    "required_no_more": Case(
        NOT_NULL, "SELECT k, x FROM t", ("ALTER TABLE t ALTER COLUMN x DROP NOT NULL; INSERT INTO t VALUES (5, NULL)",)
    ),
    "view_redefined_with_another_type": Case(
        (*KV, "CREATE VIEW sv AS SELECT k, x FROM t"),
        "SELECT k, x FROM sv",
        ("CREATE OR REPLACE VIEW sv AS SELECT k, CAST(x AS STRING) || '!' AS x FROM t", "INSERT INTO t VALUES (4, 40)"),
    ),
    "vacuumed": Case(
        KV,
        "SELECT k, x FROM t",
        (
            "UPDATE t SET x = x + 1; OPTIMIZE t; SET spark.databricks.delta.retentionDurationCheck.enabled = false; "
            "VACUUM t RETAIN 0 HOURS",
        ),
    ),
    "vacuumed_group": Case(
        TU,
        "SELECT t.k, count(y) AS n, avg(y) AS m FROM t LEFT JOIN u ON t.k = u.k GROUP BY t.k",
        (
            "UPDATE t SET x = x + 1 WHERE k = 1; DELETE FROM u WHERE k = 1; OPTIMIZE t; OPTIMIZE u; "
            "SET spark.databricks.delta.retentionDurationCheck.enabled = false; VACUUM t RETAIN 0 HOURS; VACUUM u RETAIN 0 HOURS",
        ),
    ),
    "function_redefined": Case(
        (*KV, "CREATE FUNCTION f(a INT) RETURNS INT RETURN a + 1"),
        "SELECT k, f(x) AS y FROM t",
        ("CREATE OR REPLACE FUNCTION f(a INT) RETURNS INT RETURN a + 2", "INSERT INTO t VALUES (7, 7)"),
    ),
    "restored_and_feed_switched": Case(
        KV,
        "SELECT k, count(*) AS n, avg(x) AS m FROM t GROUP BY k",
        (
            "INSERT INTO t VALUES (1, 1); ALTER TABLE t SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true'); "
            "DELETE FROM t WHERE k = 2",
            "RESTORE TABLE t TO VERSION AS OF 1",
            "ALTER TABLE t SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true'); UPDATE t SET x = 0 WHERE k = 1",
            "ALTER TABLE t UNSET TBLPROPERTIES ('delta.enableChangeDataFeed'); UPDATE t SET x = 1 WHERE k = 1; "
            "ALTER TABLE t SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true'); UPDATE t SET k = 2 WHERE x = 1",
        ),
    ),
    "cloned": Case(
        (*KV, "CREATE TABLE c SHALLOW CLONE t"),
        "SELECT k, x FROM c",
        (
            "DELETE FROM c WHERE k = 1",
            "INSERT INTO t VALUES (5, 5); INSERT INTO c VALUES (6, 6)",
            "DELETE FROM c WHERE k = 2",
        ),
    ),
    "moved_clock": Case(
        KV, "SELECT k, current_timestamp() > TIMESTAMP'2000-01-01' AS b FROM t", ("INSERT INTO t VALUES (3, 3)",)
    ),
    # the view's own table
    "partitioned_by_empty_strings": Case(
        rows("t", "k STRING, x INT", "('a', 1), ('b', 2), (NULL, 3)"),
        "SELECT k, x FROM t",
        ("INSERT INTO t VALUES ('a', 4), (NULL, 4)", "DELETE FROM t WHERE x = 3", "UPDATE t SET k = 'a b/=%' WHERE k = 'a'"),
        "PARTITIONED BY (k)",
    ),
    "columns_of_given_types": Case(
        KV, "SELECT k, x FROM t", ("INSERT INTO t VALUES (8, 8)", "DELETE FROM t WHERE k = 1"), "(k BIGINT, x BIGINT)"
    ),
    "arrays_without_nulls": Case(
        KV,
        "SELECT k, array(1, 2) AS a, struct(1 AS one, x) AS s, map('k', 1) AS m, split('a,b', ',') AS p FROM t",
        ("INSERT INTO t VALUES (8, 8)", "DELETE FROM t WHERE k = 1"),
        never_full=True,
    ),
    "lists_without_nulls": over_two("SELECT k, sort_array(collect_list(x)) AS xs FROM t GROUP BY k", never_full=True),
    "same_column_twice": over_two("SELECT k, k, count(*), avg(x) FROM t GROUP BY k", "(a, b, n, m)"),
    "same_column_twice_rows": over_two("SELECT k, k, x FROM t", "(a, b, x)"),
    "mapped_view": over_two("SELECT k, x FROM t", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"),
    "view_without_vectors": over_two("SELECT k, x FROM t", "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"),
    "mapped_source": Case(
        rows(
            "t",
            "k INT, x INT GENERATED ALWAYS AS (k + 1), `a b` STRING COMMENT 'c'",
            "(1, 2, 'x'), (2, 3, NULL)",
            MAPPED.format("true"),
        ),
        "SELECT k, x, `a b` AS ab FROM t",
        ("INSERT INTO t (k, `a b`) VALUES (4, 'd')", "UPDATE t SET `a b` = 'e' WHERE k = 1", "DELETE FROM t WHERE k = 2"),
    ),
    # subqueries
    "exists_shown": over_two(
        "SELECT x, EXISTS (SELECT 1 FROM u WHERE u.k = t.k) AS has, k NOT IN (SELECT k FROM u WHERE y > 150) AS no FROM t"
    ),
    "in_shown": over_two("SELECT x, k IN (SELECT k FROM u) AS has, (k, x) IN (SELECT k, y FROM u) AS two FROM t"),
    "count_bug": over_two(
        "SELECT x, (SELECT count(*) FROM u WHERE u.k = t.k) AS n, (SELECT coalesce(sum(y), -1) FROM u WHERE u.k = t.k) AS s, "
        "(SELECT count(*) + 1 FROM u WHERE u.k = t.k HAVING count(*) < 2) AS h FROM t"
    ),
    "unequal_correlation": over_two(
        "SELECT x, (SELECT count(*) FROM u WHERE u.k < t.k) AS n, (SELECT max(y) FROM u WHERE u.k <> t.k) AS m FROM t"
    ),
    "correlated_in_where_or": over_two("SELECT k, x FROM t WHERE x > 15 OR x * 10 = (SELECT max(y) FROM u WHERE u.k = t.k)"),
    "correlated_in_aggregate": over_two(
        "SELECT k, sum((SELECT max(y) FROM u WHERE u.k = t.k)) AS s, count(*) AS n FROM t GROUP BY k"
    ),
    "correlated_key": over_two(
        "SELECT (SELECT max(y) FROM u WHERE u.k = t.k) AS m, count(*) AS n, sum(x) AS s FROM t GROUP BY 1"
    ),
    "correlated_limit": over_two("SELECT x, (SELECT y FROM u WHERE u.k = t.k ORDER BY y DESC LIMIT 1) AS top FROM t"),
    "nested_correlation": over_two(
        "SELECT x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.y > (SELECT avg(w.y) FROM u w WHERE w.k <= u.k))"
    ),
    "exists_in_join": over_two(
        "SELECT t.x, u.y FROM t LEFT JOIN u ON t.k = u.k AND EXISTS (SELECT 1 FROM t s WHERE s.x = t.x AND s.k > 0)"
    ),
    "in_having": over_two("SELECT k, sum(x) AS s FROM t GROUP BY k HAVING k IN (SELECT k FROM u) OR sum(x) > 25"),
    "lateral_count": over_two(
        "SELECT t.x, l.n FROM t LEFT JOIN LATERAL (SELECT count(*) AS n FROM u WHERE u.k >= t.k) l ON l.n > 0"
    ),
    "lateral_top": over_two("SELECT t.x, l.y FROM t, LATERAL (SELECT y FROM u WHERE u.k >= t.k ORDER BY y LIMIT 1) l"),
    "lateral_union": over_two("SELECT t.x, l.z FROM t, LATERAL (SELECT t.k AS z UNION ALL SELECT t.x) l"),
    "self_in": over_two("SELECT k, x FROM t WHERE x IN (SELECT max(x) FROM t GROUP BY k)"),
    "not_in_self": over_two("SELECT k, x FROM t a WHERE k NOT IN (SELECT b.k FROM t b WHERE b.x > a.x)"),
    # unions, expands, windows
    "union_of_one_column_twice": over_two("SELECT k, k AS l FROM t UNION ALL SELECT y, y FROM u UNION ALL SELECT k, x FROM t"),
    "unions_in_distinct": over_two(
        "SELECT DISTINCT k FROM ((SELECT k FROM t UNION SELECT k FROM u) UNION ALL (SELECT x FROM t UNION SELECT x FROM t))"
    ),
    "union_by_name": over_two("SELECT count(*) AS n, k FROM (SELECT k, x FROM t UNION ALL SELECT k, y FROM u) GROUP BY k"),
    "cte_thrice": over_two(
        "WITH c AS (SELECT k, sum(x) AS s FROM t GROUP BY k) SELECT a.k, a.s, b.s AS other "
        "FROM c a LEFT JOIN c b ON a.k < b.k WHERE a.s IN (SELECT s FROM c)"
    ),
    "cte_unused": Case(TU, "WITH c AS (SELECT k FROM u) SELECT k, x FROM t", CHANGES[:2], never_full=True),
    "sets_of_sets": over_two(
        "SELECT k, x, grouping(k) AS g, count(*) AS n, avg(x) AS m FROM t GROUP BY GROUPING SETS ((k), (k, x), (x), ())"
    ),
    "rollup_merged": over_two("SELECT k, grouping_id() AS g, count(*) AS n FROM t GROUP BY ROLLUP (k)"),
    "windows_of_two_kinds": over_two(
        "SELECT k, x, sum(x) OVER (PARTITION BY k, x % 2) AS a, sum(x) OVER (PARTITION BY k) AS b, "
        "rank() OVER (PARTITION BY x % 2 ORDER BY x, k) AS c FROM t"
    ),
    "filter_over_window": over_two(
        "SELECT k AS a, k AS b, n FROM (SELECT k, count(*) OVER (PARTITION BY k) AS n FROM t) WHERE n > 1"
    ),
    "max_of_max": over_two(
        "SELECT k, max(m) AS m FROM (SELECT k, x, max(x) AS m FROM t GROUP BY k, x) GROUP BY k HAVING max(m) < 25"
    ),
    "window_over_window": over_two(
        "SELECT k, x, sum(n) OVER (PARTITION BY k ORDER BY x) AS s FROM (SELECT k, x, count(*) OVER (PARTITION BY x) AS n FROM t)"
    ),
    "renamed_twice": over_two(
        "SELECT b AS c, n FROM (SELECT a AS b, n FROM (SELECT k AS a, count(*) AS n, avg(x) AS m FROM t GROUP BY k) "
        "WHERE m > 1) WHERE n > 0"
    ),
    "explode_outer_of_join": over_two(
        "SELECT t.k, v FROM t LEFT JOIN u ON t.k = u.k LATERAL VIEW OUTER explode(filter(array(x, y), e -> e > 15)) e AS v"
    ),
    # joins
    "right_of_unequal": over_two("SELECT t.x, u.y FROM t RIGHT JOIN u ON t.k = u.k AND t.x * 10 <= u.y"),
    "full_of_unequal": over_two("SELECT t.x, u.y FROM t FULL JOIN u ON t.k = u.k AND t.x * 10 <= u.y"),
    "full_only_unequal": over_two("SELECT t.x, u.y FROM t FULL JOIN u ON t.x * 10 <= u.y"),
    "full_null_safe": over_two("SELECT t.x, u.y FROM t FULL JOIN u ON t.k <=> u.k AND t.x > 5"),
    "full_self": over_two("SELECT a.x, b.x AS other FROM t a FULL JOIN t b ON a.k = b.k AND a.x < b.x"),
    "self_with_aggregate": over_two(
        "SELECT a.k, a.x, b.s FROM t a JOIN (SELECT k, sum(x) AS s FROM t GROUP BY k) b ON a.k = b.k"
    ),
    "left_self_aggregate": over_two(
        "SELECT a.k, count(b.x) AS n, sum(b.x) AS s, count(*) AS m FROM t a LEFT JOIN t b ON a.k = b.k AND b.x > a.x GROUP BY a.k"
    ),
    "anti_self": over_two("SELECT a.k, a.x FROM t a LEFT ANTI JOIN t b ON a.k = b.k AND a.x < b.x"),
    "merge_of_left": over_two(
        "SELECT t.k, count(*) AS n, count(u.y) AS c, sum(u.y) AS s FROM t LEFT JOIN u ON t.k = u.k GROUP BY t.k"
    ),
    "merge_of_inner": over_two(
        "SELECT t.k, count(*) AS n, sum(u.y) AS s, count(u.y) AS c FROM t JOIN u ON t.k = u.k GROUP BY t.k"
    ),
    "key_and_constant": over_two("SELECT t.x, u.y FROM t LEFT JOIN u ON t.k = u.k AND u.y > 150 AND 1 = 1 AND t.k = 2"),
    "common_expressions": over_two(
        "SELECT k, count_if(x > 10) AS n, nullif(sum(x), 21) AS s, sum(x) BETWEEN 5 AND 25 AS b FROM t GROUP BY k",
        never_full=True,
    ),
    "common_expressions_of_rows": over_two("SELECT nullif(k + x, 11) AS a, k + x BETWEEN 5 AND 25 AS b FROM t", never_full=True),
    "nested_comment": Case(
        rows("t", "k INT, s STRUCT<a: INT COMMENT 'x'>", "(1, struct(1))"),
        "SELECT k, s FROM t",
        ("INSERT INTO t VALUES (2, struct(2))",),
        never_full=True,
    ),
    "struct_in_mapped_view": Case(
        rows("t", "k INT, s STRUCT<a: INT>", "(1, struct(1))"),
        "SELECT k, s FROM t",
        ("INSERT INTO t VALUES (2, struct(2))",),
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        never_full=True,
    ),
    "values_only": Case(KV, "SELECT * FROM VALUES (1, 2) v(a, b)", ("INSERT INTO t VALUES (1, 1)",)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_view_answers_as_its_query(sql: Workshop, name: str) -> None:
    check(sql, CASES[name])


def check(sql: Workshop, case: Case) -> None:
    """Make the view and do what is to be done to its sources; fail where it is not what its query is."""
    for statement in case.before:
        sql(statement)
    sql(f"CREATE MATERIALIZED VIEW v {case.clauses} REFRESH POLICY INCREMENTAL AS {case.query}")
    assert _difference(sql, case) == "", "at first"
    said: list[str] = []
    for step in case.steps:
        for statement in step.split("; "):
            sql(statement)
        said.append(str(sql("REFRESH MATERIALIZED VIEW v")[0][0]))
        assert _difference(sql, case) == "", (step, said)
    assert not case.never_full or not any(": full" in each for each in said), said


def _difference(sql: Workshop, case: Case) -> str:
    found, expected = (Result.of(_comparable(sql.spark.sql(each))) for each in ("SELECT * FROM v", case.query))
    if case.clauses:
        found = Result(expected.columns, found.rows)
    return difference(found, expected, Leniency())


def _comparable(rows: DataFrame) -> DataFrame:
    """Return rows with variants as texts: Python's values of them are equal only if they are the same."""
    variants = [field.name for field in rows.schema if isinstance(field.dataType, VariantType)]
    texts = {name: F.concat(F.schema_of_variant(F.col(name)), F.lit(" "), F.to_json(F.col(name))) for name in variants}
    return rows.withColumns(texts) if texts else rows


def test_a_view_keeps_its_partitions_when_a_column_gets_a_wider_type(sql: Workshop) -> None:
    for statement in rows("t", "k INT, x INT", "(1, 10), (2, 20)", WIDENED):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v (k COMMENT 'the key', x) PARTITIONED BY (k) REFRESH POLICY INCREMENTAL AS SELECT k, x FROM t")
    sql("ALTER TABLE t ALTER COLUMN x TYPE BIGINT")
    sql("INSERT INTO t VALUES (3, 10000000000)")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql("DESCRIBE DETAIL v")[0].partitionColumns == ["k"]
    assert sql("DESCRIBE v")[0].comment == "the key"
