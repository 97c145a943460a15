"""Functions over streams that need Python to be tested: reduce functions, and aggregates of sets of every type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sqlext
from sqlext.errors import NameTakenError, SchemaError
from sqlext.functions.scalar import AGGREGATES_OF_SETS
from tests.support import rows

INTEGERS = "avg kurtosis mean skewness std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance".split()
SUMS = ["sum", "avg", "mean", "try_sum", "try_avg"]


def of_batch_and_of_set(spark: SparkSession, names: list[str], values: str) -> tuple[list[Any], list[Any]]:
    """Types and values of `f(DISTINCT v)`, and of f over the set, which is what a stream runs."""
    found = []
    for call in ("{}(DISTINCT v)", "__sqlext_aggregate_set('{}', collect_set(v))"):
        frame = spark.sql(f"SELECT {', '.join(f'{call.format(n)} AS {n}' for n in names)} FROM VALUES {values} AS t(v)")
        row = frame.select(*(F.col(name).cast("string") for name in names)).collect()[0]
        found.append([(name, kind, value) for (name, kind), value in zip(frame.dtypes, row, strict=True)])
    return found[0], found[1]


def close(one: tuple[str, str, str | None], other: tuple[str, str, str | None]) -> bool:
    """Whether two results are equal; doubles may be added up in another order."""
    if one == other or one[:2] != other[:2] or one[1] != "double" or one[2] is None or other[2] is None:
        return one == other
    return math.isclose(float(one[2]), float(other[2]), rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("names", "values"),
    [
        pytest.param(sorted(AGGREGATES_OF_SETS), "(1), (2), (1), (NULL), (7)", id="int"),
        pytest.param(sorted(AGGREGATES_OF_SETS), "(CAST(NULL AS INT))", id="only nulls"),
        pytest.param([*INTEGERS, "bit_xor"], "(1Y), (127Y), (127Y)", id="tinyint"),
        pytest.param([*SUMS, "bit_xor"], "(9223372036854775807L), (9223372036854775807L), (NULL)", id="bigint"),
        pytest.param(["try_sum"], "(9223372036854775807L), (1L)", id="overflow"),
        pytest.param(INTEGERS, "(1.10), (2.25), (1.1), (NULL)", id="decimal"),
        pytest.param(["try_sum", "try_avg"], "(99999999999999999999999999999999999999BD), (1BD)", id="wide decimal"),
        pytest.param(INTEGERS, "(0.1D), (0.2D), (0.1D), (0.0D), (-0.0D)", id="double"),
        pytest.param(SUMS, "(double('NaN')), (1D), (double('NaN'))", id="NaN"),
        pytest.param(INTEGERS, "('1'), ('1.0'), ('2')", id="string"),
        pytest.param(SUMS, "(INTERVAL '1' DAY), (INTERVAL '1' DAY), (INTERVAL '3' DAY)", id="interval"),
        pytest.param(SUMS, "(INTERVAL '1' YEAR), (INTERVAL '2' MONTH)", id="months"),
    ],
)
def test_an_aggregate_of_a_set_is_spark_s_own_of_distinct_values(spark: SparkSession, names: list[str], values: str) -> None:
    batch, of_set = of_batch_and_of_set(spark, names, values)
    assert [(b, s) for b, s in zip(batch, of_set, strict=True) if not close(b, s)] == []


def test_a_sum_of_a_set_overflows_as_spark_s_own_does(spark: SparkSession) -> None:
    query = "SELECT __sqlext_aggregate_set('sum', collect_set(v)) FROM VALUES (9223372036854775807L), (1L) AS t(v)"
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        spark.sql(query).collect()
    spark.conf.set("spark.sql.ansi.enabled", "false")
    assert spark.sql(query).collect()[0][0] == -(2**63)  # as Java adds


def test_new_sessions_have_it(spark: SparkSession) -> None:
    assert spark.newSession().sql("SELECT __sqlext_aggregate_set('sum', array(1, 2))").collect()[0][0] == 3


def longest(one: str, other: str) -> str:
    return max(one, other, key=lambda word: (len(word), word))


def test_a_reduce_function_over_a_stream_and_over_a_batch_query(spark: SparkSession) -> None:
    sqlext.register_reduce_function("test_longest", longest, "STRING")
    sqlext.register_reduce_function("test_longest", longest, "STRING")  # the same again
    spark.sql("CREATE TABLE words (k STRING, w STRING) USING delta")
    early = "test_longest(w) FILTER (WHERE w < 'c')"
    query = f"SELECT k, test_longest(w) AS w, {early} AS early, size(collect_set(w)) AS n FROM {{}} GROUP BY k"
    spark.sql("INSERT INTO words VALUES ('a', 'one'), ('b', NULL), (NULL, 'x')")
    stream = query.format("STREAM words WITH ('maxFilesPerTrigger' = '1')")
    spark.sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes') AS {stream}")
    spark.sql("WAIT FLOW t")
    spark.sql("INSERT INTO words VALUES ('a', 'three'), ('a', NULL), ('a', 'bb')")
    spark.sql("INSERT INTO words VALUES ('a', 'seven'), (NULL, 'abc'), ('c', 'after')")
    spark.sql("WAIT FLOW t")

    found = rows(spark.table("t"))
    assert found == [("a", "three", "bb", 4), ("b", None, None, 0), ("c", "after", "after", 1), (None, "abc", "abc", 2)]
    # Spark has no FILTER for Python aggregates in batch queries
    batch = "SELECT k, test_longest(w) AS w, test_longest(CASE WHEN w < 'c' THEN w END) AS early FROM words GROUP BY k"
    assert [row[:3] for row in found] == rows(spark.sql(batch))


def test_a_reduce_function_is_refused_when_it_does_not_take_two_values_or_its_name_is_taken() -> None:
    of_one: Callable[..., Any] = len
    with pytest.raises(SchemaError, match=r"^A reduce function takes exactly two values and returns one; len\(obj, /\)"):
        sqlext.register_reduce_function("test_broken", of_one, "INT")
    with pytest.raises(NameTakenError):
        sqlext.register_reduce_function("collect", longest, "STRING")
