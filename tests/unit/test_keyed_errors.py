"""Keyed functions that fail: messages name function, key and row, and carry the function's own traceback."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DateType, DecimalType, LongType, Row, StringType, StructField, StructType

from sqlext.errors import KeyedFunctionError, PartitionFunctionError, SqlextError
from sqlext.execution.keyed.keyed_worker import KeyedTask
from sqlext.functions.keyed import KeyedContext, KeyedProcessFunction, RuntimeContext

SCHEMA = StructType().add("user", StringType()).add("v", LongType())
KEYS = StructType().add("user", StringType()).add("v > 0", StringType())
RETURNS = StructType().add("user", StringType()).add("n", LongType())


def batch_of(*rows: tuple[str, int]) -> pa.RecordBatch:
    users, values = pa.array([row[0] for row in rows]), pa.array([row[1] for row in rows])
    signs = pa.array([str(row[1] > 0) for row in rows])
    return pa.RecordBatch.from_arrays([users, values, users, signs], names=["user", "v", "__0", "__1"])


ROWS = batch_of(("ann", 1), ("ann", 2), ("bob", 3))


class Scripted(KeyedProcessFunction):
    """Does what it is told in each method."""

    def __init__(
        self,
        element: Callable[[Any, Row, KeyedContext], Any] = lambda _, row, __: [(row.user, row.v)],
        timer: Callable[[Any, KeyedContext], Any] = lambda _, __: None,
        opening: Callable[[Any], Any] = lambda _: None,
        closing: Callable[[Any], Any] = lambda _: None,
    ) -> None:
        self.element, self.timer, self.opening, self.closing = element, timer, opening, closing
        self.closed = 0

    def open(self, runtime_context: RuntimeContext) -> Any:
        self.runtime_context = runtime_context
        self.state = runtime_context.get_value_state("state", "n BIGINT")
        return self.opening(self)

    def process_element(self, row: Row, context: KeyedContext) -> Any:
        self.context = context
        context.register_event_time_timer(row.v * 10)
        return self.element(self, row, context)

    def on_timer(self, timestamp: int, context: KeyedContext) -> Any:
        return self.timer(self, context)

    def close(self) -> Any:
        self.closed += 1
        return self.closing(self)


def error_of(function: KeyedProcessFunction, returns: StructType = RETURNS) -> str:
    task = KeyedTask("f", function, SCHEMA, KEYS, returns)
    with pytest.raises(KeyedFunctionError) as caught:
        list(task.run(iter([ROWS])))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # only the text says what failed
    return str(caught.value)


def fail(*_: Any) -> Any:
    raise ValueError("no luck")


def fail_later(*_: Any) -> Iterator[Any]:
    yield "ann", 1
    fail()


AT_BOB = "process_keyed: the function `f` failed at user = 'bob', v > 0 = 'True', row Row(user='bob', v=3):\n"
AT_ANN = "process_keyed: the function `f` failed at user = 'ann', v > 0 = 'True', "


def at_bob(do: Callable[..., Any]) -> Scripted:
    """A function that does a thing with the last row only."""
    return Scripted(element=lambda self, row, context: do(self, row, context) if row.user == "bob" else None)


def test_it_is_in_the_tree_beside_that_of_partitions() -> None:
    assert KeyedFunctionError.__bases__ == PartitionFunctionError.__bases__ == (SqlextError, RuntimeError)


@pytest.mark.parametrize("fails", [fail, fail_later])
def test_a_row_fails_with_the_users_own_traceback(fails: Callable[..., Any]) -> None:
    message = error_of(at_bob(fails))
    assert message.startswith(AT_BOB + '  File "')
    assert message.endswith("\nValueError: no luck")
    assert ", in fail\n" in message
    assert "keyed_worker" not in message


def test_a_timer_fails() -> None:
    message = error_of(Scripted(timer=lambda _, context: fail() if context.timestamp() == 20 else None))
    assert message.startswith(AT_ANN + 'timer 20:\n  File "')
    assert message.endswith("\nValueError: no luck")


@pytest.mark.parametrize("method", ["open", "close"])
def test_open_and_close_fail(method: str) -> None:
    message = error_of(Scripted(opening=fail) if method == "open" else Scripted(closing=fail))
    assert message.startswith(f'process_keyed: the function `f` failed in {method}():\n  File "')
    assert message.endswith("\nValueError: no luck")


def test_what_fails_is_closed_and_the_first_error_counts() -> None:
    for function in (Scripted(opening=fail, closing=fail), Scripted(element=fail, closing=fail), Scripted(timer=fail)):
        assert "no luck" in error_of(function)
        assert function.closed == 1


def test_long_rows_are_cut() -> None:
    task = KeyedTask("f", Scripted(element=fail), SCHEMA, KEYS, RETURNS)
    with pytest.raises(KeyedFunctionError) as caught:
        list(task.run(iter([batch_of(("x" * 10_000, 1))])))
    assert str(caught.value).split("\n")[0] == (
        f"process_keyed: the function `f` failed at user = '{'x' * 499}..., v > 0 = 'True', row Row(user='{'x' * 490}...:"
    )


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (lambda self, _, __: self.state.update("a"),
         "sqlext.errors.SchemaError: The state `state` takes `n BIGINT`, Python's int; this is 'a', of type str."),
        (lambda self, _, __: self.runtime_context.get_value_state("late", "n BIGINT"),
         "sqlext.errors.KeyedFunctionError: The state `late` is requested after open() has returned. Request states only in"),
        (lambda _, __, context: context.register_event_time_timer("1"),
         "sqlext.errors.SchemaError: A timer's time must be an integer, in milliseconds, not '1'."),
        (lambda _, row, __: row, "TypeError: process_element returned Row(user='bob', v=3), which is not an iterable of rows. "
                                 "Yield rows, or return a list of them."),
        (lambda _, row, __: row.asDict(), "TypeError: process_element returned {'user': 'bob', 'v': 3}, which is not an"),
        (lambda _, __, ___: "bob", "TypeError: process_element returned 'bob', which is not an iterable of rows."),
        (lambda _, __, ___: 3, "TypeError: process_element returned 3, which is not an iterable of rows."),
    ],
)  # fmt: skip
def test_misuse_names_function_key_and_row(element: Callable[..., Any], reason: str) -> None:
    message = error_of(at_bob(element))
    assert message.startswith(AT_BOB)
    assert message.splitlines()[-1].startswith(reason)
    assert "single_key_state.py" not in message


@pytest.mark.parametrize("method", ["open", "close"])
@pytest.mark.parametrize("subject", ["state", "context"])
def test_what_belongs_to_a_key_is_used_without_one(method: str, subject: str) -> None:
    def use(self: Any) -> None:
        if subject == "state":
            self.state.update(1)
        else:
            self.context.register_event_time_timer(1)

    if (method, subject) == ("open", "context"):
        return  # nobody has one yet
    message = error_of(Scripted(opening=use) if method == "open" else Scripted(closing=use))
    named = "The state `state`" if subject == "state" else "The context"
    assert message.startswith(f'process_keyed: the function `f` failed in {method}():\n  File "')
    assert message.endswith(
        f"sqlext.errors.KeyedFunctionError: {named} belongs to a key, and there is no key now. "
        "Use it only in process_element and on_timer."
    )


@pytest.mark.parametrize("method", ["open", "close"])
def test_rows_come_from_keys_only(method: str) -> None:
    def rows(_: Any) -> list[Any]:
        return [("ann", 1)]

    assert error_of(Scripted(opening=rows) if method == "open" else Scripted(closing=rows)) == (
        f"process_keyed: the function `f` returned [('ann', 1)] from {method}(), where there is no key. "
        "Return rows only from process_element and on_timer."
    )


AT_BOB_RETURNED = "process_keyed: the function `f` at user = 'bob', v > 0 = 'True' returned "


@pytest.mark.parametrize(
    ("value", "declared", "message"),
    [
        ("x", LongType(), "'x', of type str, which does not fit its column `n BIGINT`: "),
        (1.5, LongType(), "1.5, of type float, which does not fit its column `n BIGINT`: "),
        (2**70, LongType(), f"{2**70}, of type int, which does not fit its column `n BIGINT`: "),
        (
            Decimal("0.5"),
            LongType(),
            "Decimal('0.5'), of type Decimal, which does not fit its column `n BIGINT`: Decimal('0.5') is no",
        ),
        (math.nan, LongType(), "nan, of type float, which does not fit its column `n BIGINT`: nan is not a valid BIGINT."),
        (5, DateType(), "5, of type int, which does not fit its column `n DATE`: 5 is not a valid DATE."),
        (1.5, DecimalType(10, 2), "1.5, of type float, which does not fit its column `n DECIMAL(10,2)`."),
        (Decimal(10**9), DecimalType(3, 2), "Decimal('1000000000'), of type Decimal, which does not fit its column `n DECIMAL(3"),
        (None, None, "None, of type NoneType, which does not fit its column `n BIGINT NOT NULL`: "),
    ],
    ids=str,
)
def test_wrong_output_names_column_value_and_type(value: Any, declared: DataType | None, message: str) -> None:
    right = {DecimalType: Decimal(1), DateType: None}.get(type(declared), 1)
    function = Scripted(element=lambda _, row, __: [(row.user, value if row.user == "bob" else right)])
    field = StructField("n", declared or LongType(), declared is not None)
    assert error_of(function, StructType([StructField("user", StringType()), field])).startswith(AT_BOB_RETURNED + message)


def test_whole_numbers_of_other_classes_are_integers() -> None:
    values = iter([2.0, Decimal(3), np.int16(4)])
    task = KeyedTask("f", Scripted(element=lambda _, row, __: [(row.user, next(values))]), SCHEMA, KEYS, RETURNS)
    (batch,) = task.run(iter([ROWS]))
    assert batch.column("n").to_pylist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (("bob",), "('bob',), of 1 columns; the declared columns are ['user', 'n']."),
        (7, "7, of 1 columns; the declared columns are ['user', 'n']."),
        ({"user": "bob", "m": 1}, "a row with the columns ['m', 'user']; the declared columns are ['user', 'n']."),
    ],
)
def test_rows_of_other_columns(item: Any, message: str) -> None:
    assert error_of(at_bob(lambda *_: [item])) == AT_BOB_RETURNED + message


def test_a_time_column_that_is_none() -> None:
    task = KeyedTask("f", Scripted(element=lambda _, __, context: context.timestamp()), SCHEMA, KEYS, RETURNS, time=0)
    with pytest.raises(KeyedFunctionError) as caught:
        list(task.run(iter([ROWS])))
    assert str(caught.value).startswith(AT_ANN + "row Row(user='ann', v=1):\n")
    assert str(caught.value).endswith(
        "SchemaError: The column `user` cannot be the event time: its type is string. Order by a timestamp, a date, or a whole "
        "number of milliseconds."
    )
