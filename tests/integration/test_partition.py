"""Full-partition processing against plain Python over the same partitions, and what it refuses."""

from __future__ import annotations

import datetime
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sqlext
from sqlext import Order, full_window_partition
from sqlext.errors import SchemaError, UnsupportedError
from sqlext.execution.partitions.partition import ATTRIBUTES, PartitionWindowedDataFrame
from tests.support import rows

# Data: few values of each type, so that many are the same.

doubles = st.sampled_from([None, math.nan, -0.0, 0.0, 1.5, -2.5, math.inf])
words = st.sampled_from([None, "", "a", "B", "é", "𝄞", "\uffff", "a b"])
COLUMNS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "i": ("INT", st.sampled_from([None, -1, 0, 7, 2**31 - 1])),
    "d": ("DOUBLE", doubles),
    "f": ("FLOAT", st.sampled_from([None, math.nan, -0.0, 0.0, 0.5])),
    "w": ("STRING", words),
    "b": ("BOOLEAN", st.sampled_from([None, True, False])),
    "x": ("BINARY", st.sampled_from([None, b"", b"\x00", b"\xff\x01"])),
    "n": ("DECIMAL(12, 3)", st.sampled_from([None, Decimal("-1.250"), Decimal("0.000"), Decimal("123456789.125")])),
    "day": ("DATE", st.sampled_from([None, datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)])),
    "t": ("TIMESTAMP", st.sampled_from([None, datetime.datetime(2024, 5, 1, 9, 0, 0, 1), datetime.datetime(1999, 1, 1)])),
    "s": ("STRUCT<d: DOUBLE, w: STRING>", st.none() | st.tuples(doubles, words)),
    "a": ("ARRAY<DOUBLE>", st.none() | st.lists(doubles, max_size=2)),
}
PARTITIONS = st.lists(
    st.one_of(
        st.just([]),
        st.lists(st.tuples(*(values for _, values in COLUMNS.values())), min_size=1, max_size=1),
        st.lists(st.tuples(*(values for _, values in COLUMNS.values())), min_size=2, max_size=8),
    ),
    min_size=1,
    max_size=5,
)


def frame_of(spark: SparkSession, partitions: list[list[tuple[Any, ...]]]) -> DataFrame:
    """One partition each; `id` numbers the rows, and `ids` holds it in an array."""
    number = iter(range(10**6))
    numbered = [[(at, [at], *row) for row in part for at in [next(number)]] for part in partitions]
    schema = "id BIGINT, ids ARRAY<BIGINT>, " + ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    return spark.createDataFrame(spark.sparkContext.parallelize(numbered, len(numbered)).flatMap(list), schema)


def place(value: Any) -> tuple[Any, ...]:
    """Where Spark sorts a value, ascending; two values of one place are one key."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    if isinstance(value, (tuple, list)):
        return (1, tuple(map(place, value)))
    return (1, value.encode() if isinstance(value, str) else value)


# Functions of each kind; what comes out are the ids of a window.


def ids_of_rows(records: Iterator[Row]) -> Iterator[list[list[int]]]:
    yield [[row.id for row in records]]


def ids_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    ids = [at for batch in batches for at in batch.column("id").to_pylist()]
    yield pa.RecordBatch.from_pydict({"ids": [ids]}, schema=pa.schema([("ids", pa.list_(pa.int64()))]))


class IdsOfRows(sqlext.AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: Row) -> list[int]:
        return [*accumulator, value.id]

    def get_result(self, accumulator: list[int]) -> Any:
        return {"ids": accumulator}


class IdsOfBatches(IdsOfRows):
    def add(self, accumulator: list[int], value: pa.RecordBatch) -> list[int]:
        return accumulator + value.column("id").to_pylist()  # type: ignore[no-any-return]


def both(one: Row, other: Row) -> Row:
    return Row(**{**other.asDict(), "ids": one.ids + other.ids})


def d_of_row(row: Row) -> float:
    return row.d  # type: ignore[no-any-return]


def d_of_batch(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("d")


def no_keys(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("id").slice(0, 0)


Window = PartitionWindowedDataFrame
Method = Callable[[Window], DataFrame]

ONE_ROW: dict[str, Method] = {
    "map rows": lambda window: window.map_partition(ids_of_rows, "ids ARRAY<BIGINT>"),
    "map batches": lambda window: window.map_partition(ids_of_batches, "ids ARRAY<BIGINT>"),
    "aggregate rows": lambda window: window.aggregate(IdsOfRows(), "ids ARRAY<BIGINT>"),
    "aggregate batches": lambda window: window.aggregate(IdsOfBatches(), "ids ARRAY<BIGINT>"),
    "reduce": lambda window: window.reduce(both),
}
SORTS: dict[str, Callable[[Window, Order], DataFrame]] = {
    "index": lambda window, order: window.sort_partition(3, order),
    "name": lambda window, order: window.sort_partition("d", order),
    "row selector": lambda window, order: window.sort_partition(d_of_row, order),
    "batch selector": lambda window, order: window.sort_partition(d_of_batch, order, key_type="DOUBLE"),
}
ORDERS = (Order.ASCENDING, Order.DESCENDING)


def run(cases: dict[Any, DataFrame]) -> dict[Any, list[list[int]]]:
    """The `ids` that come out of each case, in order; all cases are one job."""
    names = list(cases)
    found: dict[Any, list[list[int]]] = {name: [] for name in names}
    labelled = [cases[name].select(F.lit(at).alias("case"), "ids") for at, name in enumerate(names)]
    for case, ids in functools.reduce(DataFrame.union, labelled).collect():
        found[names[case]].append(ids)
    return found


def in_order(ids: Iterable[int], data: dict[int, Row], column: Callable[[Row], Any]) -> list[tuple[Any, ...]]:
    return [place(column(data[at])) for at in ids]


@settings(max_examples=4, deadline=None)
@given(partitions=PARTITIONS)
def test_windows_of_partitions(spark: SparkSession, partitions: list[list[tuple[Any, ...]]]) -> None:
    frame = frame_of(spark, partitions)
    found = [(row[0], row) for row in frame.select(F.spark_partition_id(), "*").collect()]
    data = {row.id: row for _, row in found}
    windows = [[row.id for part, row in found if part == at] for at in range(len(partitions))]
    assert [len(window) for window in windows] == [len(partition) for partition in partitions]

    window = full_window_partition(frame)
    cases: dict[Any, DataFrame] = {name: method(window) for name, method in ONE_ROW.items()}
    cases |= {(name, "d", order): sort(window, order) for name, sort in SORTS.items() for order in ORDERS}
    cases |= {("name", name, order): window.sort_partition(name, order) for name in COLUMNS for order in ORDERS}
    cases |= {("nested", "s.d", order): window.sort_partition("s.d", order) for order in ORDERS}
    results = run(cases)

    for name in ONE_ROW:
        assert results.pop(name) == [ids for ids in windows if ids or name != "reduce"], name
    for (kind, column, order), result in results.items():
        value = functools.partial(_value, column)
        ids = [at for (at,) in result]
        for expected in windows:
            here, ids = ids[: len(expected)], ids[len(expected) :]
            assert sorted(here) == sorted(expected), (kind, column, order)
            ascending = sorted(in_order(expected, data, value))
            assert in_order(here, data, value) == (ascending if order is Order.ASCENDING else ascending[::-1]), (column, order)
        assert not ids


def _value(column: str, row: Row) -> Any:
    if column == "s.d":
        return row.s and row.s.d
    return row[column]


@settings(max_examples=4, deadline=None)
@given(partitions=PARTITIONS)
def test_windows_of_keys(spark: SparkSession, partitions: list[list[tuple[Any, ...]]]) -> None:
    frame = frame_of(spark, partitions)
    data = {row.id: row for row in frame.collect()}
    by_column: dict[str, dict[tuple[Any, ...], list[int]]] = {name: defaultdict(list) for name in COLUMNS}
    for name in COLUMNS:
        for at, row in data.items():
            by_column[name][place(row[name])].append(at)
    by_two: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for at, row in data.items():
        by_two[place(row.d), place(row.i)].append(at)

    of_columns = {name: method(full_window_partition(frame.groupBy("d"))) for name, method in ONE_ROW.items()}
    of_two = {(name, 2): method(full_window_partition(frame.groupBy("d", "i"))) for name, method in ONE_ROW.items()}
    of_each = {("each", name): ONE_ROW["aggregate rows"](full_window_partition(frame.groupBy(name))) for name in COLUMNS}
    by_word = full_window_partition(frame.groupBy(F.col("w")))
    sorts = {(name, order): sort(by_word, order) for name, sort in SORTS.items() for order in ORDERS}
    sorts["nested", Order.DESCENDING] = by_word.sort_partition("s.d", Order.DESCENDING)
    results = run({**of_columns, **of_two, **of_each, **sorts})

    def windows(case: Any) -> list[list[int]]:
        return sorted(sorted(ids) for ids in results[case])

    for name in of_columns:
        assert windows(name) == sorted(by_column["d"].values()), name
    for of_both in of_two:
        assert windows(of_both) == sorted(by_two.values()), of_both
    for _, name in of_each:
        assert windows(("each", name)) == sorted(by_column[name].values()), name
    for kind, order in sorts:
        ids = [at for (at,) in results[kind, order]]
        value = functools.partial(_value, "s.d" if kind == "nested" else "d")
        seen = []
        while ids:
            expected = by_column["w"][place(data[ids[0]].w)]
            here, ids = ids[: len(expected)], ids[len(expected) :]
            assert sorted(here) == expected, (kind, order)
            ascending = sorted(in_order(expected, data, value))
            assert in_order(here, data, value) == (ascending if order is Order.ASCENDING else ascending[::-1]), (kind, order)
            seen += here
        assert sorted(seen) == sorted(data), (kind, order)


# Plans.


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_without_keys_nothing_moves_and_with_keys_it_moves_once(spark: SparkSession) -> None:
    frame = spark.range(0, 100, 1, 3).withColumn("d", F.col("id") / 2).withColumn("ids", F.array("id"))
    sorts: list[Method] = [
        lambda window: window.sort_partition("d"),
        lambda window: window.sort_partition(d_of_row),
        lambda window: window.sort_partition(1, Order.DESCENDING),
    ]
    for method in (*ONE_ROW.values(), *sorts):
        as_it_is = method(full_window_partition(frame))
        assert "Exchange" not in plan_of(as_it_is)
        assert as_it_is.rdd.getNumPartitions() == 3
        assert plan_of(method(full_window_partition(frame.groupBy("d")))).count("Exchange hashpartitioning") == 1


def test_a_function_starts_while_rows_still_arrive(spark: SparkSession, tmp_path: Path) -> None:
    started = tmp_path / "started"

    def starts(records: Iterator[Row]) -> Iterator[Row]:
        for row in records:
            started.touch()
            yield row

    failing_late = spark.range(0, 10**6, 1, 1).selectExpr("if(id > 900000, raise_error('too far')::bigint, id) AS id")
    with pytest.raises(PySparkException, match="too far"):
        full_window_partition(failing_late).map_partition(starts, "id BIGINT").collect()
    assert started.exists()


def test_a_function_need_not_read_all(spark: SparkSession) -> None:
    def first(records: Iterator[Row]) -> Iterator[int]:
        yield next(records).id

    frame = spark.range(0, 10**6, 1, 2).selectExpr("id", "id % 3 AS k")
    assert rows(full_window_partition(frame).map_partition(first, "id BIGINT")) == [(0,), (500_000,)]
    keyed = full_window_partition(frame.where("id < 300000").groupBy("k"))
    assert {row.id % 3 for row in keyed.map_partition(first, "id BIGINT").collect()} == {0, 1, 2}


def test_columns_of_one_name_and_odd_names(spark: SparkSession) -> None:
    frame = spark.sql("SELECT * FROM VALUES (1, 3, 'x'), (2, 1, 'y') AS t(a, b, `c.d`)").selectExpr("a", "b AS a", "`c.d`")

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.names == ["a", "a", "c.d"]
            yield batch

    window = full_window_partition(frame.coalesce(1))
    assert rows(window.map_partition(same, frame.schema)) == [(1, 3, "x"), (2, 1, "y")]
    assert [tuple(row) for row in window.sort_partition(1).collect()] == [(2, 1, "y"), (1, 3, "x")]
    assert [tuple(row) for row in window.sort_partition("`c.d`", Order.DESCENDING).collect()] == [(2, 1, "y"), (1, 3, "x")]
    assert rows(window.reduce(lambda one, other: (one[0] + other[0], one[1] + other[1], one[2] + other[2]))) == [(3, 4, "xy")]
    assert window.reduce(lambda one, other: one).columns == ["a", "a", "c.d"]


def test_all_are_full_dams() -> None:
    assert {str(attributes) for attributes in ATTRIBUTES.values()} == {"is_output_only_after_end_of_stream"}


# Bad input, refused at once.


class Nothing:
    pass


def of_pair(one: Row, other: Row) -> Row:
    return one


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.sort_partition(4), "sort_partition has no column 4. The columns are 0 `id`, 1 `value`, 2 `s`, 3 `m`."),
        (lambda w: w.sort_partition(-1), "sort_partition has no column -1."),
        (lambda w: w.sort_partition("valeu"), "sort_partition has no column `valeu`. Did you mean `value`?"),
        (lambda w: w.sort_partition("s.z"), "sort_partition has no column `s.z`. The columns are `id`, `value`, `s`, `m`."),
        (lambda w: w.sort_partition("*"), "sort_partition has no column `*`."),
        (lambda w: w.sort_partition("m"), 'does not support ordering on type "MAP<INT, BIGINT>".'),
        (
            lambda w: w.sort_partition(None),
            "The key of sort_partition must be a column's index or name, or a function, not None.",
        ),
        (lambda w: w.sort_partition("id", "asc"), "must be Order.ASCENDING or Order.DESCENDING, not 'asc'."),
        (lambda w: w.sort_partition(lambda row: row.id), "does not know the type of the keys that <lambda> returns."),
        (lambda w: w.sort_partition(lambda row: row.id, key_type="LNG"), "The key_type `LNG` of sort_partition cannot be read"),
        (lambda w: w.sort_partition(of_pair), "does not know the type of the keys that of_pair returns."),
        (lambda w: w.sort_partition(of_pair, key_type="INT"), "sort_partition calls its function with (record); of_pair"),
        (lambda w: w.map_partition(of_pair, "id INT"), "map_partition calls its function with (records); of_pair"),
        (lambda w: w.map_partition(3, "id INT"), "map_partition calls its function with (records); 3 is not a function."),
        (
            lambda w: w.map_partition(iter, "id INTT"),
            "The schema `id INTT` of map_partition cannot be read: Unsupported data type",
        ),
        (lambda w: w.map_partition(iter, "INT"), "The schema `INT` of map_partition has no column names. Write `name INT`."),
        (lambda w: w.map_partition(iter, "i INTERVAL"), "the column `i` is INTERVAL, which cannot be converted to Arrow."),
        (lambda w: w.aggregate(Nothing(), "id INT"), "aggregate takes an object whose class extends sqlext.AggregateFunction"),
        (lambda w: w.aggregate(IdsOfRows, "id INT"), "aggregate takes an object whose class extends sqlext.AggregateFunction"),
        (lambda w: w.reduce(d_of_row), "reduce_partition calls its function with (one, other); d_of_row"),
    ],
)
def test_bad_input(spark: SparkSession, call: Callable[[Any], object], message: str) -> None:
    frame = spark.range(1).selectExpr("id", "'x' AS value", "struct(id AS y) AS s", "map(1, id) AS m")
    with pytest.raises(SchemaError) as caught:
        call(full_window_partition(frame))
    assert message in str(caught.value)


def test_an_ambiguous_name(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("id AS a", "id + 1 AS a")
    with pytest.raises(SchemaError, match=r"^sort_partition: the column `a` is ambiguous\. Give its index\.$"):
        full_window_partition(frame).sort_partition("a")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda s: s.readStream.format("rate").load(),
            "full_window_partition needs the end of its input, and a stream has no end.",
        ),
        (lambda s: s.range(1).rollup("id"), "full_window_partition takes df.groupBy(columns); this is Rollup."),
        (lambda s: s.range(1).groupBy("id").pivot("id", [1]), "full_window_partition takes df.groupBy(columns); this is Pivot."),
        (lambda s: s.range(1).groupBy(), "this is groupBy() without columns."),
        (
            lambda s: s.sql("SELECT 'a' COLLATE UTF8_LCASE AS c").groupBy("c"),
            "cannot group by `c`, which has the collation UTF8_LCASE.",
        ),
        (
            lambda s: s.sql("SELECT array(struct('a' COLLATE UTF8_LCASE)) AS c").groupBy("c"),
            "cannot group by `c`, which has the collation UTF8_LCASE.",
        ),
    ],
)
def test_what_has_no_windows(spark: SparkSession, make: Callable[[SparkSession], Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        full_window_partition(make(spark))
    assert message in str(caught.value)


# Bad functions, found out when they run.


def fails(records: Iterator[Row]) -> Iterator[float]:
    for row in records:
        yield inverse(row.id - 3)


def inverse(number: int) -> float:
    return 1 / number


def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.rename_columns(["number"])


def negated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.cast(batch.column("id"), pa.int32())], names=["id"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.map_partition(fails, "x DOUBLE"), "map_partition: the function `fails` in partition 1 failed:\n"),
        (lambda w: w.map_partition(fails, "x DOUBLE", name="inverses"), "map_partition: the function `inverses` in partition 1"),
        (
            lambda w: w.map_partition(lambda rows: 3, "x INT"),
            "returned 3, which is not an iterable of rows or batches; yield them.",
        ),
        (
            lambda w: w.map_partition(lambda rows: [(1, 2)], "x INT"),
            "returned (1, 2), of 2 columns; the declared columns are ['x'].",
        ),
        (
            lambda w: w.map_partition(lambda rows: [{"y": 2}], "x INT"),
            "returned a row with the columns ['y']; the declared columns are ['x'].",
        ),
        (lambda w: w.map_partition(lambda rows: ["a"], "x INT"), "returned values that do not fit its column `x INT`: "),
        (
            lambda w: w.map_partition(renamed, "id BIGINT"),
            "returned batches with the columns ['number']; the declared columns are ['id'].",
        ),
        (lambda w: w.map_partition(negated, "id BIGINT"), "returned `id` as Arrow's int32; the declared type is int64."),
        (lambda w: w.aggregate(IdsOfRows(), "x INT"), "returned a row with the columns ['ids']; the declared columns are ['x']."),
        (lambda w: w.reduce(lambda one, other: 1 / 0), "reduce_partition: the function `<lambda>` in partition "),
        (lambda w: w.sort_partition(lambda row: "a", key_type="INT"), "a key does not fit the type INT: "),
        (lambda w: w.sort_partition(no_keys, key_type="BIGINT"), "a batch of 2 rows must have as many keys, not 0"),
        (lambda w: w.sort_partition(d_of_batch, key_type="INT"), "'Field \"d\" does not exist in schema'"),
    ],
)
def test_bad_functions(spark: SparkSession, call: Callable[[Any], DataFrame], message: str) -> None:
    with pytest.raises(PySparkException) as caught:
        call(full_window_partition(spark.range(0, 4, 1, 2))).collect()
    assert message in str(caught.value)


def test_an_error_carries_the_users_own_traceback(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        full_window_partition(spark.range(0, 4, 1, 2).groupBy("id")).map_partition(fails, "x DOUBLE").collect()
    own = str(caught.value).partition("PartitionFunctionError: ")[2]
    assert "failed at id = 3:\n" in own
    assert own.endswith("ZeroDivisionError: division by zero")
    assert "in fails\n" in own
    assert "in inverse\n" in own
    assert "partition_worker" not in own
    assert "pyspark" not in own
