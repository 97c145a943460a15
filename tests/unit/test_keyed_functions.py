"""Keyed functions as users write them: what comes out of sorted batches, key by key, and what the registry takes."""

from __future__ import annotations

import datetime
import itertools
import math
import weakref
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    Row,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import sqlext
from sqlext.errors import NameTakenError, NotFoundError, SchemaError
from sqlext.execution.keyed.keyed_stream import KeyedProcessor
from sqlext.execution.keyed.keyed_worker import KeyedTask
from sqlext.functions.keyed import (
    KEYED_FUNCTIONS,
    MAX_WATERMARK,
    MIN_WATERMARK,
    KeyedContext,
    KeyedFunction,
    KeyedProcessFunction,
    RuntimeContext,
)
from sqlext.functions.registry import OperatorFunctions
from tests.support import UncombinedTable

SCHEMA = StructType().add("k", DoubleType()).add("v", LongType())
KEYS = StructType().add("k", DoubleType())
RETURNS = StructType().add("what", StringType()).add("key", DoubleType()).add("n", LongType())


def batches_of(rows: list[tuple[Any, ...]], cuts: Iterable[int] = (), kind: pa.DataType | None = None) -> list[pa.RecordBatch]:
    """Batches of rows of a key and a value, cut before these indices, with the key once more as the key column."""
    keys = pa.array([row[0] for row in rows], kind or pa.float64())
    values = pa.array([row[1] for row in rows], pa.int64())
    whole = pa.RecordBatch.from_arrays([keys, values, keys], names=["k", "v", "__key"])
    bounds = [0, *sorted(cuts), len(rows)]
    return [whole.slice(begin, stop - begin) for begin, stop in itertools.pairwise(bounds)]


def results_of(
    function: KeyedProcessFunction, batches: Iterable[pa.RecordBatch], returns: StructType = RETURNS, **task: Any
) -> list[tuple[Any, ...]]:
    """The rows that come out."""
    made = KeyedTask(**{"name": "f", "function": function, "schema": SCHEMA, "keys": KEYS, "returns": returns, **task})
    return [tuple(row.values()) for batch in made.run(iter(batches)) for row in batch.to_pylist()]


class Everything(KeyedProcessFunction):
    """Uses each kind of state, and timers that register and delete others."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_value_state("total", "n BIGINT")
        self.values = runtime_context.get_list_state("values", "n BIGINT")
        self.counts = runtime_context.get_map_state("counts", "rest BIGINT", "n BIGINT")

    def process_element(self, row: Row, context: KeyedContext) -> Iterator[Any] | None:
        self.total.update((self.total.value() or 0) + row.v)
        self.values.append(row.v)
        self.counts.put(row.v % 3, (self.counts.get_value(row.v % 3) or 0) + 1)
        if row.v % 5 == 0:
            self.values.clear()
        context.register_event_time_timer(row.v)
        if row.v % 7 == 0:
            context.delete_event_time_timer(row.v - 1)
        if row.v % 2:
            return None
        return self._running(row)

    def _running(self, row: Row) -> Iterator[Any]:
        yield "total", row.k, self.total.value()
        yield {"n": len(list(self.values.get())), "key": row.k, "what": "values"}

    def on_timer(self, timestamp: int, context: KeyedContext) -> list[Any]:
        if timestamp % 4 == 1:
            context.register_event_time_timer(timestamp + 1)
            context.delete_event_time_timer(timestamp + 2)
        self.total.update((self.total.value() or 0) + 1)
        counts = [("count", context.key[0], rest * 100 + n) for rest, n in sorted(self.counts.iterator())]
        self.counts.remove(timestamp % 3)
        return [Row(what="timer", key=context.key[0], n=timestamp), *counts, ["total", context.key[0], self.total.value()]]


def everything_with_dicts(rows: list[tuple[float | None, int]]) -> list[tuple[Any, ...]]:
    """What `Everything` gives, worked out with a dict of the rows of each key."""
    by_key: dict[str, list[tuple[float | None, int]]] = {}
    for row in rows:
        by_key.setdefault(repr(row[0]), []).append(row)
    found: list[tuple[Any, ...]] = []
    for of_key in by_key.values():
        key, total, values, timers = of_key[0][0], 0, 0, set()
        counts: dict[int, int] = {}
        for _, v in of_key:
            total += v
            values = 0 if v % 5 == 0 else values + 1
            counts[v % 3] = counts.get(v % 3, 0) + 1
            timers.add(v)
            if v % 7 == 0:
                timers.discard(v - 1)
            if v % 2 == 0:
                found += [("total", key, total), ("values", key, values)]
        while timers:
            time = min(timers)
            timers.remove(time)
            if time % 4 == 1:
                timers.add(time + 1)
                timers.discard(time + 2)
            total += 1
            found.append(("timer", key, time))
            found += [("count", key, rest * 100 + n) for rest, n in sorted(counts.items())]
            counts.pop(time % 3, None)
            found.append(("total", key, total))
    return found


@given(
    runs=st.lists(st.lists(st.integers(-20, 20), min_size=1, max_size=8), max_size=6),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_the_same_as_with_a_dict_for_each_key(runs: list[list[int]], cuts: list[int]) -> None:
    keys = [None, -math.inf, -1.5, 0.0, 2.0, math.nan]
    rows = [(key, v) for key, run in zip(keys, runs, strict=False) for v in run]
    found = results_of(Everything(), batches_of(rows, [min(cut, len(rows)) for cut in cuts]))
    assert list(map(repr, found)) == list(map(repr, everything_with_dicts(rows)))  # NaN is not equal to itself


class Keys(KeyedProcessFunction):
    """Gives each key when its first row comes, and how many rows it had at its end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_value_state("count", "n INT")

    def process_element(self, row: Row, context: KeyedContext) -> None:
        self.count.update((self.count.value() or 0) + 1)
        context.register_event_time_timer(0)

    def on_timer(self, timestamp: int, context: KeyedContext) -> Iterator[Any]:
        yield repr(context.key), None, self.count.value()


POINT = StructType().add("x", DoubleType()).add("y", LongType())
POINTS = pa.struct([("x", pa.float64()), ("y", pa.int64())])
NAN = {"x": math.nan, "y": None}
NOON = datetime.datetime(2024, 1, 1, 12)
MIDNIGHT = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "arrow", "values", "expected"),
    [
        (DoubleType(), pa.float64(), [None, math.nan, math.nan], [("(None,)", 1), ("(nan,)", 2)]),
        (BinaryType(), pa.binary(), [b"", b"\x00", b"\x00"], [("(b'',)", 1), (r"(b'\x00',)", 2)]),
        (DecimalType(10, 2), pa.decimal128(10, 2), [Decimal("0.01")] * 2, [("(Decimal('0.01'),)", 2)]),
        (TimestampNTZType(), pa.timestamp("us"), [NOON, NOON], [("(datetime.datetime(2024, 1, 1, 12, 0),)", 2)]),
        (POINT, POINTS, [None, NAN, NAN], [("(None,)", 1), ("(Row(x=nan, y=None),)", 2)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_keys_of_any_type(
    kind: DataType, arrow: pa.DataType, values: list[Any], expected: list[tuple[str, int]], size: int
) -> None:
    batches = batches_of([(value, 1) for value in values], range(size, len(values), size), arrow)
    found = results_of(Keys(), batches, schema=StructType().add("k", kind).add("v", LongType()), keys=StructType().add("k", kind))
    assert found == [(key, None, count) for key, count in expected]


def test_several_key_columns() -> None:
    columns = [pa.array([1.0, 1.0, 1.0]), pa.array([7, 8, 9]), pa.array(["a", "a", "b"]), pa.array([1, 1, 1])]
    batch = pa.RecordBatch.from_arrays(columns, names=["k", "v", "__0", "__1"])
    keys = StructType().add("lower(s)", StringType()).add("v % 2", LongType())
    assert results_of(Keys(), [batch], keys=keys) == [("('a', 1)", None, 2), ("('b', 1)", None, 1)]


def test_no_rows_open_and_close_all_the_same() -> None:
    calls: list[str] = []

    class Lifetime(Keys):
        def open(self, runtime_context: RuntimeContext) -> None:
            super().open(runtime_context)
            calls.append("open")

        def close(self) -> None:
            calls.append("close")

    for batches in ([], batches_of([]), batches_of([], [0, 0])):
        assert results_of(Lifetime(), batches) == []
    assert calls == ["open", "close"] * 3


class Moments(KeyedProcessFunction):
    """Gives event time and watermark, of rows and timers."""

    def process_element(self, row: Row, context: KeyedContext) -> list[Any]:
        context.register_event_time_timer(row.v)
        return [("row", context.timestamp(), context.current_watermark())]

    def on_timer(self, timestamp: int, context: KeyedContext) -> list[Any]:
        assert context.timestamp() == timestamp
        return [("timer", timestamp, context.current_watermark())]


MOMENTS = StructType().add("what", StringType()).add("time", LongType()).add("watermark", LongType())


def test_the_watermark_is_min_in_rows_and_max_in_timers() -> None:
    rows = [(1.0, 5), (1.0, 3), (2.0, 4)]
    assert results_of(Moments(), batches_of(rows), MOMENTS, time=1) == [
        ("row", 5, MIN_WATERMARK),
        ("row", 3, MIN_WATERMARK),
        ("timer", 3, MAX_WATERMARK),
        ("timer", 5, MAX_WATERMARK),
        ("row", 4, MIN_WATERMARK),
        ("timer", 4, MAX_WATERMARK),
    ]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([None, 1500, -1], pa.int64()), [None, 1500, -1]),
        (pa.array([None, 1_500_999, -1], pa.timestamp("us")), [None, 1500, -1]),  # rounded down, also before 1970
        (pa.array([MIDNIGHT] * 3, pa.timestamp("us", "Europe/Paris")), [1_704_067_200_000] * 3),
        (pa.array([2, 0, None], pa.timestamp("s")), [2000, 0, None]),
        (pa.array([datetime.date(1970, 1, 2), None, datetime.date(1969, 12, 31)]), [86_400_000, None, -86_400_000]),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "",
)
def test_event_time_is_milliseconds(column: pa.Array, expected: list[int | None]) -> None:
    (batch,) = batches_of([(1.0, 0)] * 3)
    with_time = pa.RecordBatch.from_arrays([*batch.columns[:2], column, batch.column(2)], names=["k", "v", "ts", "__key"])
    found = results_of(Moments(), [with_time.slice(0, 1), with_time.slice(1)], MOMENTS, time=2)
    assert [time for what, time, _ in found if what == "row"] == expected
    assert [time for what, time, _ in results_of(Moments(), [with_time], MOMENTS) if what == "row"] == [None] * 3


def test_rows_are_those_of_the_schema_as_spark_converts_them() -> None:
    seen: list[Row] = []

    class Look(KeyedProcessFunction):
        def process_element(self, row: Row, context: KeyedContext) -> None:
            seen.append(row)

    schema = StructType().add("k", DoubleType()).add("day", DateType()).add("at", TimestampType())
    day = pa.array([datetime.date(2024, 1, 1)])
    columns = [pa.array([1.0]), day, pa.array([MIDNIGHT], pa.timestamp("us", "UTC")), pa.array([1.0])]
    batch = pa.RecordBatch.from_arrays(columns, names=["k", "day", "at", "__key"])
    assert results_of(Look(), [batch], schema=schema) == []
    assert seen == [Row(k=1.0, day=datetime.date(2024, 1, 1), at=MIDNIGHT.astimezone().replace(tzinfo=None))]


class Copies(KeyedProcessFunction):
    """Gives each row's value so many times."""

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def process_element(self, row: Row, context: KeyedContext) -> Iterator[Any]:
        for _ in range(self.copies):
            yield "v", row.k, row.v


def test_output_comes_while_input_arrives_and_rows_come_in_batches() -> None:
    taken: list[int] = []

    def arriving() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches_of([(1.0, v) for v in range(4)], [1, 2, 3])):
            taken.append(number)
            yield batch

    out = KeyedTask("f", Copies(2500), SCHEMA, KEYS, RETURNS).run(arriving())
    assert taken == []
    assert [next(out).num_rows for _ in range(3)] == [1000, 1000, 500]
    assert taken == [0]
    assert next(out).num_rows == 1000
    assert taken == [0, 1]


def test_rows_that_are_too_long_for_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalDataToArrowConversion, "convert", UncombinedTable)
    assert results_of(Copies(3), batches_of([(1.0, 7)])) == [("v", 1.0, 7)] * 3
    processor = KeyedProcessor(KeyedTask("f", Copies(3), SCHEMA, KEYS, RETURNS), False)
    assert len(list(processor._rows(iter([("v", 1.0, 7)] * 3)))) == 3


@pytest.mark.parametrize("rows_a_key", [1, 1000])
def test_one_batch_is_in_memory(rows_a_key: int) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def arriving() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(100):
            most = max(most, sum(each() is not None for each in alive))
            values = np.arange(number * 10, number * 10 + 10) // rows_a_key
            alive.append(weakref.ref(values))  # whose memory the batch uses, too
            keys = pa.array(values)
            yield pa.RecordBatch.from_arrays([keys, pa.array(range(10)), keys], names=["k", "v", "__key"])
            del values, keys

    class Few(Copies):
        def process_element(self, row: Row, context: KeyedContext) -> Iterator[Any]:
            return super().process_element(row, context) if row.v == 0 else iter(())

    assert len(results_of(Few(1), arriving())) == 100
    assert most <= 2


def test_what_stops_reading_closes_the_function() -> None:
    closed: list[str] = []

    class Closing(Copies):
        def process_element(self, row: Row, context: KeyedContext) -> Iterator[Any]:
            try:
                yield from super().process_element(row, context)
            finally:
                closed.append(f"generator at {context.key}")

        def close(self) -> None:
            closed.append("function")

    out = KeyedTask("f", Closing(5000), SCHEMA, KEYS, RETURNS).run(iter(batches_of([(1.0, 1)])))
    next(out)
    out.close()  # type: ignore[attr-defined]  # it is a generator
    assert closed == ["generator at (1.0,)", "function"]


def test_a_task_goes_to_workers_by_cloudpickle() -> None:
    pickled = cloudpickle.dumps(KeyedTask("f", Everything(), SCHEMA, KEYS, RETURNS).run)  # type: ignore[no-untyped-call]
    (batch,) = cloudpickle.loads(pickled)(iter(batches_of([(1.0, 1)])))
    assert [tuple(row.values()) for row in batch.to_pylist()] == everything_with_dicts([(1.0, 1)])


class WrongArguments(KeyedProcessFunction):
    def process_element(self, row: Row) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("function", "returns", "message"),
    [
        (Copies, "a INT", "The keyed function `f` is <class '"),
        (len, "a INT", "The keyed function `f` is <built-in function len>, not a KeyedProcessFunction. Extend sqlext.Keyed"),
        (
            WrongArguments(),
            "a INT",
            "process_keyed calls its function with (row, context); process_element(row: 'Row') -> 'None'",
        ),
        (Copies(1), " ", "The keyed function `f` needs `returns`: its columns, such as 'total DOUBLE'."),
    ],
)
def test_what_cannot_be_registered(function: Any, returns: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        KeyedFunction("f", function, returns)
    assert str(caught.value).startswith(message)
    if function is Copies:
        assert str(caught.value).endswith("not a KeyedProcessFunction. Give an object of the class: Copies().")


def test_the_registry() -> None:
    registry: OperatorFunctions[KeyedFunction] = OperatorFunctions("keyed function")
    with pytest.raises(NotFoundError, match=r"^There is no keyed function `visit`\. None is registered for process_keyed yet\.$"):
        registry.get("visit", "process_keyed")
    visits, alerts = KeyedFunction("Visits", Copies(1), "a INT"), KeyedFunction("alerts", Copies(2), "b INT")
    for function in (visits, alerts, visits):
        registry.add(function)
    assert [each.name for each in registry] == ["alerts", "Visits"]
    assert registry.get("VISITS", "process_keyed") is visits
    with pytest.raises(NameTakenError, match=r"^There is a keyed function `Visits` already\."):
        registry.add(KeyedFunction("visits", Copies(3), "a INT"))
    with pytest.raises(NotFoundError) as missing:
        registry.get("visit", "process_keyed")
    assert str(missing.value) == (
        "There is no keyed function `visit`. Did you mean `Visits`? Those of process_keyed are alerts, Visits."
    )


def test_registering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KEYED_FUNCTIONS, "_functions", {})
    function = Copies(1)
    sqlext.register_keyed_function("copies", function, returns="what STRING, key DOUBLE, n BIGINT")
    assert list(KEYED_FUNCTIONS) == [KeyedFunction("copies", function, "what STRING, key DOUBLE, n BIGINT")]
