"""State of one key: what each kind of state keeps, which values it takes, and when there is none."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, LongType, Row, StringType, StructType

from sqlext.errors import KeyedFunctionError, SchemaError
from sqlext.execution.keyed.single_key_state import SingleKeyContext, SingleKeyStateBackend
from sqlext.execution.keyed.state_types import StateType
from sqlext.functions.keyed import ListState, MapState, ValueState


def states(value: str = "n BIGINT", key: str = "k STRING") -> tuple[SingleKeyStateBackend, ValueState, ListState, MapState]:
    """A backend with one state of each kind, at its first key."""
    backend = SingleKeyStateBackend()
    made = backend.get_value_state("v", value), backend.get_list_state("l", value), backend.get_map_state("m", key, value)
    backend.end_open()
    backend.start_key()
    return backend, *made


def test_a_value() -> None:
    _, state, _, _ = states()
    assert (state.exists(), state.value()) == (False, None)
    state.update(0)
    assert (state.exists(), state.value()) == (True, 0)
    state.update(None)
    assert (state.exists(), state.value()) == (False, None)
    state.update(2)
    state.clear()
    assert (state.exists(), state.value()) == (False, None)


def test_a_list() -> None:
    _, _, state, _ = states()
    assert (state.exists(), list(state.get())) == (False, [])
    state.append(1)
    state.append_list(range(2, 4))
    state.append(None)
    assert (state.exists(), list(state.get())) == (True, [1, 2, 3, None])
    for value in state.get():  # what is appended meanwhile is not read
        state.append(value)
    before = state.get()
    state.put([9])
    assert (len(list(before)), list(state.get())) == (8, [9])
    with pytest.raises(SchemaError):
        state.append_list([1, "a"])
    assert list(state.get()) == [9]
    state.clear()
    assert not state.exists()


def test_a_map() -> None:
    _, _, _, state = states()
    assert (state.exists(), state.get_value("a"), state.contains("a")) == (False, None, False)
    state.put("a", 1)
    state.update({"b": 2, None: None})
    assert (state.exists(), state.get_value("b"), state.contains(None), state.get_value(None)) == (True, 2, True, None)
    assert (list(state.keys()), list(state.values())) == (["a", "b", None], [1, 2, None])
    for key, _ in state.iterator():  # the map may change meanwhile
        state.remove(key)
    state.remove("c")
    assert not state.exists()
    state.put("a", 1)
    state.clear()
    assert list(state.iterator()) == []


def test_each_key_starts_with_nothing() -> None:
    backend, value, values, entries = states()
    for _ in range(3):
        assert not any(state.exists() for state in (value, values, entries))
        value.update(1)
        values.append(1)
        entries.put("a", 1)
        kept = values.get()
        backend.start_key()
        assert list(kept) == [1]  # what was read of the former key stays


def uses() -> dict[str, Callable[[ValueState, ListState, MapState], object]]:
    return {
        "value.exists": lambda v, _, __: v.exists(),
        "value.value": lambda v, _, __: v.value(),
        "value.update": lambda v, _, __: v.update(1),
        "value.update None": lambda v, _, __: v.update(None),
        "value.clear": lambda v, _, __: v.clear(),
        "list.exists": lambda _, v, __: v.exists(),
        "list.get": lambda _, v, __: v.get(),
        "list.append": lambda _, v, __: v.append(1),
        "list.append_list": lambda _, v, __: v.append_list([]),
        "list.put": lambda _, v, __: v.put([]),
        "list.clear": lambda _, v, __: v.clear(),
        "map.exists": lambda _, __, m: m.exists(),
        "map.get_value": lambda _, __, m: m.get_value("a"),
        "map.contains": lambda _, __, m: m.contains("a"),
        "map.put": lambda _, __, m: m.put("a", 1),
        "map.update": lambda _, __, m: m.update({}),
        "map.iterator": lambda _, __, m: m.iterator(),
        "map.keys": lambda _, __, m: m.keys(),
        "map.values": lambda _, __, m: m.values(),
        "map.remove": lambda _, __, m: m.remove("a"),
        "map.clear": lambda _, __, m: m.clear(),
    }


@pytest.mark.parametrize("value", ["n BIGINT", "n BIGINT, s STRING"])
@pytest.mark.parametrize("use", uses().values(), ids=uses())
def test_without_a_key_there_is_no_state(use: Callable[[ValueState, ListState, MapState], object], value: str) -> None:
    backend = SingleKeyStateBackend()
    made = backend.get_value_state("v", value), backend.get_list_state("l", value), backend.get_map_state("m", "k STRING", value)
    message = r"^The state `[vlm]` belongs to a key, and there is no key now\. Use it only in process_element and on_timer\.$"
    with pytest.raises(KeyedFunctionError, match=message):
        use(*made)
    backend.end_open()
    backend.start_key()
    backend.end_keys()
    with pytest.raises(KeyedFunctionError, match=message):
        use(*made)


def test_states_are_made_in_open_once() -> None:
    backend = SingleKeyStateBackend()
    state = backend.get_value_state("v", "n BIGINT")
    assert backend.get_value_state("v", "n: BIGINT") is state
    for other in (lambda: backend.get_value_state("v", "n INT"), lambda: backend.get_list_state("v", "n BIGINT")):
        with pytest.raises(SchemaError, match=r"^There is a state `v` of another type already\. Give this one another name\.$"):
            other()
    backend.end_open()
    with pytest.raises(KeyedFunctionError, match=r"^The state `v` is requested after open\(\) has returned\."):
        backend.get_value_state("v", "n BIGINT")


MIDNIGHT = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("ddl", "given", "kept"),
    [
        ("n BIGINT", 1, 1),
        ("n INT NOT NULL COMMENT 'a, (b'", np.int32(1), 1),
        ("x DOUBLE", 1, 1.0),
        ("x FLOAT", np.float64(0.5), 0.5),
        ("s VARCHAR(10)", "a", "a"),
        ("b BINARY", bytearray(b"a"), b"a"),
        ("d DECIMAL(10, 2)", Decimal("0.01"), Decimal("0.01")),
        ("b BOOLEAN", np.bool_(True), True),
        ("d DATE", MIDNIGHT.date(), MIDNIGHT.date()),
        ("ts TIMESTAMP", MIDNIGHT, MIDNIGHT),
        ("a ARRAY<STRUCT<x: INT, y: INT>>", [(1, 2)], [(1, 2)]),
        ("m MAP<STRING, INT>", {"a": 1}, {"a": 1}),
        ("s STRUCT<x: INT, y: INT>", Row(x=1, y=2), (1, 2)),
        ("i INTERVAL DAY TO SECOND", datetime.timedelta(1), datetime.timedelta(1)),
        ("`a, b` bigint, s string", Row(x=1, s="a"), (1, "a")),
        ("n BIGINT, s STRING", (np.int64(1), None), (1, None)),
        (StructType().add("n", LongType()).add("a", ArrayType(StringType())), (1, ["a"]), (1, ["a"])),
    ],
    ids=str,
)
def test_values_that_fit(ddl: str | StructType, given: Any, kept: Any) -> None:
    backend = SingleKeyStateBackend()
    value, values = backend.get_value_state("v", ddl), backend.get_list_state("l", ddl)
    backend.start_key()
    value.update(given)
    values.append(given)
    values.append_list([given])
    for found in (value.value(), *values.get()):
        assert found == kept
        assert isinstance(found, type(kept))


@pytest.mark.parametrize(
    ("ddl", "given", "message"),
    [
        ("n BIGINT", "1", "The state `v` takes `n BIGINT`, Python's int; this is '1', of type str."),
        ("n BIGINT", True, "The state `v` takes `n BIGINT`, Python's int; this is True, of type bool."),
        ("n BIGINT", (1,), "The state `v` takes `n BIGINT`, Python's int; this is (1,), of type tuple."),
        ("x DOUBLE", Decimal(1), "The state `v` takes `x DOUBLE`, Python's float; this is Decimal('1'), of type Decimal."),
        ("d DATE", MIDNIGHT, "The state `v` takes `d DATE`, Python's date; this is datetime.datetime(2024, 1, 1, 0, 0, tz"),
        ("n INT, s STRING", (1, 2), "The state `v` takes `s STRING`, Python's str; this is 2, of type int."),
        ("n INT, s STRING", (1,), "The state `v` takes tuples of (n INT, s STRING); this is (1,), of type tuple."),
        ("n INT, s STRING", 1, "The state `v` takes tuples of (n INT, s STRING); this is 1, of type int."),
        ("n INT", "a" * 1000, f"The state `v` takes `n INT`, Python's int; this is '{'a' * 199}..., of type str."),
    ],
)
def test_values_that_do_not_fit(ddl: str, given: Any, message: str) -> None:
    _, value, _, _ = states(ddl)
    with pytest.raises(SchemaError) as caught:
        value.update(given)
    assert str(caught.value).startswith(message)
    assert not value.exists()


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("n BIGNT", "The state `v` has the type `n BIGNT`, but there is no type BIGNT. Did you mean `BIGINT`?"),
        ("BIGINT", "The state `v` has the type `BIGINT`, in which a column has no name. Write `value BIGINT`."),
        ("ARRAY<INT>", "The state `v` has the type `ARRAY<INT>`, in which a column has no name. Write `value ARRAY < INT >`."),
        ("", "The state `v` has the type ``, which cannot be read. Write it as 'n BIGINT, s STRING'."),
        ("n INT,", "The state `v` has the type `n INT,`, which cannot be read."),
        ("a ARRAY<INT", "The state `v` has the type `a ARRAY<INT`, which cannot be read."),
        ("a ARRAY<INT>>, b MAP<", "The state `v` has the type `a ARRAY<INT>>, b MAP<`, which cannot be read."),
        (7, "The state `v` has the type 7. Give DDL, such as 'n BIGINT', or a StructType."),
    ],
)
def test_types_that_cannot_be_read(ddl: Any, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        SingleKeyStateBackend().get_value_state("v", ddl)
    assert str(caught.value).startswith(message)


def test_keys_of_maps() -> None:
    _, _, _, state = states(key="x DOUBLE")
    state.put(1, 1)
    assert (list(state.keys()), state.contains(1.0)) == ([1.0], True)
    writes: list[Callable[[], None]] = [lambda: state.put(math.nan, 1), lambda: state.update({math.nan: 1})]
    for write in writes:
        with pytest.raises(SchemaError, match=r"^A key of the state `m` cannot be NaN, which equals nothing\.$"):
            write()
    _, _, _, pairs = states(key="x DOUBLE, y INT")
    pairs.put(Row(x=0.5, y=1), 2)
    assert (pairs.get_value((0.5, 1)), list(pairs.iterator())) == (2, [((0.5, 1), 2)])
    with pytest.raises(SchemaError, match=r"^A key of the state `m` cannot be NaN"):
        pairs.put((math.nan, 1), 2)
    with pytest.raises(
        SchemaError, match=r"^A key of the state `m` takes `x DOUBLE`, Python's float; this is 'a', of type str\.$"
    ):
        pairs.put(("a", 1), 2)
    with pytest.raises(SchemaError, match=r"^A key of the state `m` cannot be `a ARRAY < INT >`\. Use a STRUCT, or several"):
        states(key="n INT, a ARRAY<INT>")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from(["INT", "ARRAY<INT>", "MAP<INT, STRUCT<a: INT>>"])))
)
def test_columns_are_told_apart(columns: Iterable[tuple[str, str | None]]) -> None:
    written = [f"`{name},<(` {kind or 'STRING'}" for name, kind in columns]
    if written:
        kinds = StateType.of("it", ", ".join(written)).kinds
        assert kinds == tuple({None: str, "INT": int, "ARRAY<INT>": list}.get(kind, dict) for _, kind in columns)


def fired(context: SingleKeyContext, *then: Callable[[], None]) -> list[int]:
    """The times that fire; while each does, one of `then` is called."""
    calls = iter(then)
    times = []
    for time in context.fire():
        times.append(time)
        next(calls, lambda: None)()
    return times


def at_a_key() -> SingleKeyContext:
    context = SingleKeyContext()
    context.start_key(lambda: (1,))
    return context


def test_timers_fire_once_in_order() -> None:
    context = at_a_key()
    times: list[Any] = [30, -10, np.int64(20), 30, 40]
    for time in times:
        context.register_event_time_timer(time)
    context.delete_event_time_timer(40)
    context.delete_event_time_timer(50)
    assert fired(context) == [-10, 20, 30]
    context.start_key(lambda: (2,))
    assert fired(context) == []


def test_timers_registered_and_deleted_while_timers_fire() -> None:
    context = at_a_key()
    for time in (10, 20, 30):
        context.register_event_time_timer(time)

    def in_first() -> None:
        context.register_event_time_timer(5)  # in the past: fires next
        context.register_event_time_timer(10)  # it has fired, and fires again
        context.register_event_time_timer(25)
        context.register_event_time_timer(25)
        context.delete_event_time_timer(30)
        context.delete_event_time_timer(20)
        context.register_event_time_timer(20)

    assert fired(context, in_first) == [10, 5, 10, 20, 25]


def test_timers_that_come_and_go_take_no_memory() -> None:
    context = at_a_key()
    context.register_event_time_timer(0)

    def churn() -> None:
        for time in range(1, 10_000):
            context.register_event_time_timer(time)
            context.delete_event_time_timer(time - 1)
        assert context._heap is not None
        assert len(context._heap) < 200

    assert fired(context, churn) == [0, 9999]


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (1.5, "A timer's time must be an integer, in milliseconds, not 1.5."),
        (None, "A timer's time must be an integer, in milliseconds, not None."),
        (2**63, "A timer's time must fit a BIGINT; 9223372036854775808 does not."),
    ],
)
def test_times_that_are_none(time: Any, message: str) -> None:
    for use in (at_a_key().register_event_time_timer, at_a_key().delete_event_time_timer):
        with pytest.raises(SchemaError) as caught:
            use(time)
        assert str(caught.value) == message


def test_without_a_key_the_context_knows_nothing() -> None:
    context = at_a_key()
    context.end_keys()
    for use in (
        lambda: context.key,
        context.timestamp,
        context.current_watermark,
        lambda: context.register_event_time_timer(1),
        lambda: context.delete_event_time_timer(1),
    ):
        with pytest.raises(KeyedFunctionError, match=r"^The context belongs to a key, and there is no key now\."):
            use()
