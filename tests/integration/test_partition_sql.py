"""Partition operators in SQL: wherever a relation can stand, lazily, and with errors that name what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

import sqlext
from sqlext.app.problems import problem_of
from tests.support import rows


def doubled(records: Iterator[Row]) -> Iterator[tuple[int, int]]:
    for row in records:
        yield row.id, 2 * row.v


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int]]:
    yield (sum(batch.num_rows for batch in batches),)


def in_turn(records: Iterator[Row]) -> Iterator[str]:
    yield " ".join(str(row.v) for row in records)


class Total(sqlext.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, accumulator: int, value: Row) -> int:
        return accumulator + int(value.v)

    def get_result(self, accumulator: int) -> int:
        return accumulator


def larger(one: Row, other: Row) -> Row:
    return max(one, other, key=lambda row: row.v)


def broken(records: Iterator[Row]) -> Iterator[int]:
    for row in records:
        yield 1 // (row.id - 4)


@pytest.fixture(autouse=True)
def functions(spark: SparkSession) -> None:
    """The functions of this file, and a table of two partitions: ids 0 to 5, k = id % 2, v = 10 - id."""
    sqlext.register_partition_function("doubled", doubled, returns="id BIGINT, twice BIGINT")
    sqlext.register_partition_function("counted", counted, returns="n INT")
    sqlext.register_partition_function("in_turn", in_turn, returns="vs STRING")
    sqlext.register_partition_function("Total", Total(), returns="total BIGINT")
    sqlext.register_partition_function("larger", larger)
    sqlext.register_partition_function("broken", broken, returns="x INT")
    spark.range(0, 6, 1, 2).selectExpr("id", "id % 2 AS k", "10 - id AS v").createOrReplaceTempView("t")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM map_partition(TABLE(t), 'doubled') WHERE id > 3", [(4, 12), (5, 10)]),
        ("SELECT * FROM map_partition(TABLE t, 'counted')", [(3,), (3,)]),
        ("SELECT * FROM map_partition(TABLE(t) WITH SINGLE PARTITION, 'counted')", [(6,)]),
        ("SELECT * FROM map_partition(TABLE(t) PARTITION BY id % 3, 'counted')", [(2,), (2,), (2,)]),
        ("SELECT * FROM map_partition(TABLE(t) PARTITION BY t.k ORDER BY v, 'in_turn')", [("5 7 9",), ("6 8 10",)]),
        ("SELECT * FROM map_partition(TABLE(t) ORDER BY v, 'in_turn')", [("5 6 7",), ("8 9 10",)]),
        ("SELECT * FROM aggregate_partition(TABLE(t), 'total')", [(18,), (27,)]),
        ("SELECT sum(total) AS s FROM aggregate_partition(TABLE(t) PARTITION BY k, 'TOTAL') a", [(45,)]),
        ("SELECT * FROM aggregate_partition(TABLE(SELECT * FROM t WHERE id > 4), 'Total')", [(0,), (5,)]),
        ("SELECT * FROM reduce_partition(TABLE(t) PARTITION BY k, 'larger')", [(0, 0, 10), (1, 1, 9)]),
        ("SELECT * FROM reduce_partition(TABLE(t) PARTITION BY k ORDER BY id DESC, 'last_row')", [(0, 0, 10), (1, 1, 9)]),
        ("WITH c AS (SELECT * FROM t WHERE id < 2) SELECT twice, v FROM map_partition(TABLE(c), 'doubled') m JOIN c USING (id)",
         [(18, 9), (20, 10)]),
        ("WITH m AS (SELECT * FROM map_partition(TABLE(t), 'doubled')) SELECT count(*) FROM m a JOIN m b USING (id)", [(6,)]),
        ("SELECT id FROM t WHERE id IN (SELECT id + 5 FROM map_partition(TABLE(t), 'doubled')) AND k = 1", [(5,)]),
        ("SELECT (SELECT max(n) FROM map_partition(TABLE(t), 'counted')) AS m", [(3,)]),
        ("SELECT * FROM map_partition(TABLE(SELECT id, twice AS v FROM map_partition(TABLE(t), 'doubled')), 'doubled') LIMIT 1",
         [(0, 40)]),
    ],
)  # fmt: skip
def test_queries(spark: SparkSession, query: str, expected: list[tuple[Any, ...]]) -> None:
    assert rows(spark.sql(query)) == expected


def test_sorts(spark: SparkSession) -> None:
    def ids(query: str) -> list[int]:
        return [row.id for row in spark.sql(query).collect()]

    assert ids("SELECT * FROM sort_partition(TABLE(t) ORDER BY v)") == [2, 1, 0, 5, 4, 3]
    assert ids("SELECT * FROM sort_partition(TABLE(t) ORDER BY k DESC, v)") == [1, 2, 0, 5, 3, 4]
    keyed = ids("SELECT * FROM sort_partition(TABLE(t) PARTITION BY k ORDER BY (v DESC))")
    assert sorted([keyed[:3], keyed[3:]]) == [[0, 2, 4], [1, 3, 5]]


def test_insert_ctas_views_and_new_sessions(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE made USING delta AS SELECT * FROM map_partition(TABLE(t) PARTITION BY k, 'doubled')")
    spark.sql("INSERT INTO made SELECT id + 100, twice FROM map_partition(TABLE(t), 'doubled')")
    assert spark.sql("SELECT count(*), sum(twice) FROM made").collect() == [(12, 180)]
    spark.sql("CREATE TEMPORARY VIEW sorted AS SELECT * FROM sort_partition(TABLE(made) ORDER BY id)")
    assert spark.sql("SELECT sum(n) FROM map_partition(TABLE(sorted), 'counted')").collect() == [(12,)]
    spark.sql("CREATE VIEW keys AS SELECT * FROM map_partition(TABLE(made) PARTITION BY id % 5, 'counted')")
    assert sorted(spark.newSession().table("keys").collect()) == [(2,), (2,), (2,), (2,), (4,)]
    assert spark.newSession().sql("SELECT sum(n) FROM map_partition(TABLE(made), :f)", {"f": "counted"}).collect() == [(12,)]


def test_nothing_runs_before_the_query_does(spark: SparkSession, tmp_path: Path) -> None:
    called = tmp_path / "called"

    def touches(records: Iterator[Row]) -> Iterator[int]:
        called.touch()
        yield 1

    sqlext.register_partition_function("touches", touches, returns="n INT")
    frame = spark.sql("SELECT * FROM map_partition(TABLE(t), 'touches')")
    spark.sql("EXPLAIN SELECT * FROM map_partition(TABLE(t), 'touches')").collect()
    assert not called.exists()
    assert frame.count() == 2
    assert called.exists()


def test_show_and_explain(spark: SparkSession) -> None:
    shown = spark.sql("SHOW PARTITION FUNCTIONS")
    assert shown.columns == ["name", "operator", "reads", "returns"]
    assert [tuple(row) for row in shown.collect()] == [
        ("broken", "map_partition", "rows", "x INT"),
        ("counted", "map_partition", "batches", "n INT"),
        ("doubled", "map_partition", "rows", "id BIGINT, twice BIGINT"),
        ("in_turn", "map_partition", "rows", "vs STRING"),
        ("json_lines", "map_partition", "rows", "line STRING"),
        ("larger", "reduce_partition", "rows", None),
        ("last_row", "reduce_partition", "rows", None),
        ("partition_profile", "aggregate_partition", "batches", "row_count BIGINT, null_count BIGINT, byte_count BIGINT"),
        ("Total", "aggregate_partition", "rows", "total BIGINT"),
    ]
    plan = spark.sql("EXPLAIN SELECT * FROM map_partition(TABLE(t) ORDER BY v, 'counted')").collect()[0][0]
    assert plan.startswith(
        "== Partition operators ==\nmap_partition(TABLE(t) ORDER BY v, 'counted') [is_output_only_after_end_of_stream]\n\n"
        "== Physical Plan ==\n"
    )
    assert "MapInArrow map_partition_counted(" in plan
    assert "Exchange" not in plan


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM map_partition(TABLE(t), 'dubled')", "There is no partition function `dubled`. Did you mean `doubled`?"),
        ("SELECT * FROM reduce_partition(TABLE(t), 'doubled')", "reduce_partition cannot call `doubled`: it is registered for"),
        ("SELECT * FROM map_partition(TABLE(t))", "Write map_partition(TABLE(t) [PARTITION BY k] [ORDER BY v], 'function')."),
        ("SELECT * FROM map_partition(TABLE(t), 'a', 'b')", "map_partition is called with the wrong arguments."),
        ("SELECT * FROM map_partition(TABLE(t), lower('A'))", "map_partition is called with the wrong arguments."),
        ("SELECT * FROM sort_partition(TABLE(t))", "sort_partition needs an order."),
        ("SELECT * FROM sort_partition(TABLE(t) ORDER BY nope)", "sort_partition cannot sort as requested: "),
        ("SELECT * FROM sort_partition(TABLE(SELECT map(1, id) AS m FROM t) ORDER BY m)", 'ordering on type "MAP<INT, BIGINT>"'),
        ("SELECT * FROM map_partition(TABLE(t) PARTITION BY nope, 'doubled')", "`nope` cannot be resolved"),
        ("SELECT * FROM map_partition(TABLE(nope), 'doubled')", "The table or view `nope` cannot be found."),
        ("SELECT * FROM map_partition(TABLE(STREAM t2), 'counted')", "map_partition needs the end of its input, and a stream"),
        ("INSERT INTO t2 SELECT * FROM map_partition(TABLE(SELECT * FROM STREAM t2), 'counted')",
         "map_partition needs the end of its input, and a stream"),
    ],
)  # fmt: skip
def test_bad_calls(spark: SparkSession, query: str, message: str) -> None:
    spark.sql("CREATE TABLE t2 (n INT) USING delta")
    with pytest.raises(PySparkException) as caught:
        spark.sql(query.replace("TABLE(STREAM t2)", "TABLE(SELECT * FROM STREAM t2)"))
    assert message in str(caught.value)


def test_an_error_says_where_the_call_stands(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT *\nFROM map_partition(TABLE(t), 'nope')")
    problem = problem_of(caught.value)
    assert (problem.line, problem.column) == (2, 6)
    assert problem.message.startswith("There is no partition function `nope`. Those of map_partition are broken, ")


def test_people_see_the_function_s_own_traceback(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE target (x INT) USING delta")
    for query in (
        "SELECT * FROM map_partition(TABLE(t), 'broken')",
        "INSERT INTO target SELECT * FROM map_partition(TABLE(t), 'broken')",
    ):
        with pytest.raises(PySparkException) as caught:
            spark.sql(query).collect()
        message = problem_of(caught.value).message
        assert message.startswith("map_partition: the function `broken` in partition 1 failed:\n  File ")
        assert message.endswith("ZeroDivisionError: integer division or modulo by zero")
        assert "in broken\n" in message
        assert "Traceback" not in message


def test_shipped_functions(spark: SparkSession) -> None:
    spark.sql("SELECT nullif(v, 9) AS v FROM t").createOrReplaceTempView("some")
    profile = spark.sql("SELECT row_count, null_count, byte_count > 0 FROM aggregate_partition(TABLE(some), 'partition_profile')")
    assert rows(profile) == [(3, 0, True), (3, 1, True)]
    lines = spark.sql("SELECT * FROM map_partition(TABLE(SELECT id, DATE'2024-05-01' AS d FROM t WHERE id = 1), 'json_lines')")
    assert rows(lines) == [('{"id": 1, "d": "2024-05-01"}',)]
    assert lines.schema == StructType.fromDDL("line STRING")
    odd = "SELECT double('NaN') AS x, -double('inf') AS y, map(DATE'2024-05-01', struct(1 AS a)) AS m"
    lines = spark.sql(f"SELECT * FROM map_partition(TABLE({odd}), 'json_lines')")
    assert rows(lines) == [('{"x": "NaN", "y": "-Infinity", "m": {"2024-05-01": {"a": 1}}}',)]
    with pytest.raises(PySparkException, match="two columns of id, id have one name"):
        spark.sql("SELECT * FROM map_partition(TABLE(SELECT id, id FROM t), 'json_lines')").collect()
