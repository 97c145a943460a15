"""The Python workers' side of keyed functions: sorted batches in, a user's function over one key at a time, batches out.

This is FLIP-140's bounded execution: state is that of one key, and timers fire at the end of the key. Memory holds one batch of
rows, the state of one key and up to a batch of results, however many keys there are and however many rows a key has.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import Row, StructType

from sqlext.errors import KeyedFunctionError, SchemaError
from sqlext.execution.keyed import single_key_state, state_types
from sqlext.execution.keyed.single_key_state import SingleKeyContext, SingleKeyStateBackend
from sqlext.execution.partitions.key_runs import CutBatch, cut_batches
from sqlext.execution.partitions.partition_worker import as_tuple, to_batches
from sqlext.functions.keyed import OPERATOR, KeyedProcessFunction

ROWS_IN_A_BATCH = 1000
"""The number of result rows in a batch; more would be hardly faster, and rows may be long."""
_LONGEST_ROW = 500
"""The number of characters of a row that a message shows at most."""
_OWN_FILES = {__file__, single_key_state.__file__, state_types.__file__}
_END_OF_BATCH = object()
_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}

Batches = Iterator[pa.RecordBatch]
Key = Callable[[], tuple[Any, ...]]
"""Returns a key, which is only made when it is needed."""


@dataclass(frozen=True)
class KeyedTask:
    """A task that reads one partition key by key.

    Attributes:
        name: the function's name, for messages.
        function: the keyed function, opened before the first row and closed at the end of each partition.
        schema: the schema of the rows, which are the first columns of the batches.
        keys: the key columns, which are the last columns of the batches; their names are for messages.
        returns: the schema of the results.
        time: the index, in the batches, of the column with the rows' event time; None: there is no event time.
        operator: the operator's name, for messages.
    """

    name: str
    function: KeyedProcessFunction
    schema: StructType
    keys: StructType
    returns: StructType
    time: int | None = None
    operator: str = OPERATOR

    def run(self, batches: Batches) -> Batches:
        """Yield the results of a partition. Spark calls this method.

        Args:
            batches: the rows, sorted by their key columns.

        Raises:
            KeyedFunctionError: the function failed, or its results are not as declared.
        """
        execution = _Execution(self)
        try:
            execution.open()
            with contextlib.closing(execution.results(batches)) as results:  # closes a generator of the function's, too
                yield from self._batches(results, execution.context)
            execution.end_keys()
        except BaseException:
            execution.end_keys()
            with contextlib.suppress(Exception):  # the first error is the cause
                self.function.close()
            raise
        execution.close()

    def _batches(self, results: Iterator[Any], context: SingleKeyContext) -> Batches:
        width, names = len(self.returns), self.returns.names
        rows: list[tuple[Any, ...]] = []
        keys: list[Key] = []  # of each row, for messages
        for item in results:
            if item is _END_OF_BATCH:  # rows kept any longer would keep their keys, and these the batch, in memory
                if rows:
                    yield from self.checked_batches(rows, keys)
                    rows, keys = [], []
                continue
            key = context.key_of
            assert key is not None, "results come while there is a key"
            if isinstance(item, tuple) and len(item) == width:
                rows.append(item)
            else:
                try:
                    rows.append(as_tuple(item, names))
                except TypeError as error:
                    raise self.problem(f"returned {error}", key) from None
            keys.append(key)
            if len(rows) == ROWS_IN_A_BATCH:
                yield from self.checked_batches(rows, keys)
                rows, keys = [], []
        if rows:
            yield from self.checked_batches(rows, keys)

    def call_outside_of_keys(self, method: str, *arguments: Any) -> None:
        """Call the function's open or close, which return no rows.

        Raises:
            KeyedFunctionError: the call failed, or returned something.
        """
        try:
            result = getattr(self.function, method)(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever the user's function raises
            raise self.failure(error, f" in {method}()") from None
        if result is not None:
            raise self.problem(
                f"returned {shown(result)} from {method}(), where there is no key. Return rows only from process_element and "
                "on_timer"
            )

    def checked_batches(self, rows: list[tuple[Any, ...]], keys: list[Key]) -> list[pa.RecordBatch]:
        """Return results as batches of the declared types.

        Raises:
            KeyedFunctionError: a value does not fit its column; the message names the value, the column and the row's key.
        """
        try:
            return to_batches(rows, self.returns)
        except Exception as error:  # noqa: BLE001  # conversions of Spark's and Arrow's raise many kinds
            raise self._misfit(rows, keys, error) from None

    def _misfit(self, rows: list[tuple[Any, ...]], keys: list[Key], error: Exception) -> KeyedFunctionError:
        """Return an error that names the value that cannot be converted.

        Columns are tried one by one, and then the values of the one that fails.
        """
        for index, field in enumerate(self.returns.fields):
            column = StructType([field])
            if _fails([(row[index],) for row in rows], column) is None:
                continue
            for row, key in zip(rows, keys, strict=True):
                value = row[index]
                if (cause := _fails([(value,)], column)) is not None:
                    declared = f"`{field.name} {field.dataType.simpleString().upper()}{'' if field.nullable else ' NOT NULL'}`"
                    reason = f": {cause}" if str(cause) else ""  # a failed assertion has no text
                    kind = type(value).__name__
                    return self.problem(
                        f"returned {shown(value)}, of type {kind}, which does not fit its column {declared}{reason}", key
                    )
        return self.problem(f"returned rows that do not fit `{self.returns.simpleString()}`: {error}")

    def problem(self, text: str, key: Key | None = None) -> KeyedFunctionError:
        """Return an error about the function's results.

        Args:
            text: what the function did.
            key: returns the key at which it did so; None: there is none.
        """
        return KeyedFunctionError(f"{self._subject()}{self._at(key)} {text.rstrip('.')}.")

    def failure(self, error: Exception, place: str, key: Key | None = None, caller: str = __file__) -> KeyedFunctionError:
        """Return an error with the user's own traceback, without our frames above the function's first and below its last.

        Args:
            error: the error that the function raised.
            place: the place at which it did so, for the message.
            key: returns the current key; None: there is none.
            caller: the file of the module that calls the function.
        """
        frames = traceback.extract_tb(error.__traceback__)
        own = {caller, *_OWN_FILES}
        while frames and frames[0].filename in own:
            del frames[0]
        while frames and frames[-1].filename in own:
            del frames[-1]
        text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)]).rstrip()
        return KeyedFunctionError(f"{self._subject()} failed{self._at(key)}{place}:\n{text}")

    def _at(self, key: Key | None) -> str:
        if key is None:
            return ""
        return " at " + ", ".join(f"{name} = {shown(value)}" for name, value in zip(self.keys.names, key(), strict=True))

    def _subject(self) -> str:
        context = TaskContext.get()
        place = "" if context is None else f" in partition {context.partitionId()}"
        return f"{self.operator}: the function `{self.name}`{place}"


class _Execution:
    """One run of a task: the function, its state, and its position in the input. One thread uses it."""

    def __init__(self, task: KeyedTask) -> None:
        self._task = task
        self._backend = SingleKeyStateBackend()
        self.context = SingleKeyContext()

    def open(self) -> None:
        self._task.call_outside_of_keys("open", self._backend)
        self._backend.end_open()

    def close(self) -> None:
        self._task.call_outside_of_keys("close")

    def end_keys(self) -> None:
        self._backend.end_keys()
        self.context.end_keys()

    def results(self, batches: Batches) -> Generator[Any]:
        """Yield the function's results, row by row, and `_END_OF_BATCH` after the results for the rows of a batch."""
        task, backend, context = self._task, self._backend, self.context
        for cut in cut_batches(batches, len(task.keys)):
            rows = _rows(cut.values.columns[: len(task.schema)], task.schema, cut.values.num_rows, as_tuples=False)
            keys = _KeysOfBatch(cut, task.keys)
            if task.time is not None:
                context.times = _EventTimes(cut.values, task.time).of
            begin = 0
            for position, start in enumerate(cut.starts):
                if start > begin:
                    yield from self._of_rows(rows, begin, start)
                if context.has_timers:
                    yield from self._of_timers()
                backend.start_key()
                context.start_key(partial(keys.key, position))
                begin = start
            yield from self._of_rows(rows, begin, len(rows))
            yield _END_OF_BATCH
        yield from self._of_timers()

    def _of_rows(self, rows: list[Row], begin: int, stop: int) -> Iterator[Any]:
        context, process = self.context, self._task.function.process_element
        try:
            for index in range(begin, stop):
                context.index = index
                results = process(rows[index], context)
                if results is not None:
                    yield from results if type(results) in (GeneratorType, list) else iterable("process_element", results)
        except Exception as error:  # noqa: BLE001  # whatever the user's function raises
            raise self._task.failure(error, f", row {shown(rows[context.index])}", context.key_of) from None

    def _of_timers(self) -> Iterator[Any]:
        context, on_timer = self.context, self._task.function.on_timer
        try:
            for time in context.fire():
                results = on_timer(time, context)
                if results is not None:
                    yield from results if type(results) in (GeneratorType, list) else iterable("on_timer", results)
        except Exception as error:  # noqa: BLE001  # whatever the user's function raises
            raise self._task.failure(error, f", timer {context.fired}", context.key_of) from None


class _KeysOfBatch:
    """The keys that begin in a batch, all converted when the first one is needed."""

    def __init__(self, cut: CutBatch, schema: StructType) -> None:
        self._columns, self._starts = cut.keys, cut.starts
        self._schema = schema
        self._keys: list[tuple[Any, ...]] | None = None

    def key(self, position: int) -> tuple[Any, ...]:
        if self._keys is None:
            starts = pa.array(self._starts, pa.int64())
            columns = [column.take(starts) for column in self._columns]
            self._keys = _rows(columns, self._schema, len(starts), as_tuples=True)
            self._columns = []
        return self._keys[position]


class _EventTimes:
    """The event times of a batch, in milliseconds, all converted when the first one is needed."""

    def __init__(self, batch: pa.RecordBatch, index: int) -> None:
        self._name, self._column = batch.schema.names[index], batch.column(index)
        self._times: list[int | None] | None = None

    def of(self, index: int) -> int | None:
        if self._times is None:
            self._times = self._converted()
        return self._times[index]

    def _converted(self) -> list[int | None]:
        column, kind = self._column, self._column.type
        if pa.types.is_integer(kind):
            times: list[int | None] = column.to_pylist()
            return times
        if pa.types.is_date(kind):
            column, kind = column.cast(pa.timestamp("ms")), pa.timestamp("ms")
        if not pa.types.is_timestamp(kind) or kind.unit not in _MICROSECONDS:
            raise SchemaError(
                f"The column `{self._name}` cannot be the event time: its type is {kind}. Order by a timestamp, a date, or "
                "a whole number of milliseconds."
            )
        unit = _MICROSECONDS[kind.unit]
        return [None if each is None else each * unit // 1000 for each in column.cast(pa.int64()).to_pylist()]


def _rows(columns: list[pa.Array], schema: StructType, count: int, *, as_tuples: bool) -> list[Any]:
    """Return columns as rows, with each value converted as Spark does."""
    if not columns:
        return [() if as_tuples else Row()] * count
    table = pa.Table.from_arrays(columns, names=[str(index) for index in range(len(columns))])
    return list(ArrowTableToRowsConversion.convert(table, schema, return_as_tuples=as_tuples))


def iterable(method: str, results: Any) -> Iterable[Any]:
    """Return a method's results if they are an iterable of rows.

    A single row is refused: it is iterable, too, but its values are not rows.

    Raises:
        TypeError: the results are not iterable, or a single row.
    """
    if isinstance(results, (Row, dict, str, bytes)) or not isinstance(results, Iterable):
        raise TypeError(
            f"{method} returned {shown(results)}, which is not an iterable of rows. Yield rows, or return a list of them."
        )
    rows: Iterable[Any] = results
    return rows


def _fails(rows: list[tuple[Any, ...]], schema: StructType) -> Exception | None:
    """Return the error with which rows cannot be converted; None if they can."""
    try:
        to_batches(rows, schema)
    except Exception as error:  # noqa: BLE001  # conversions of Spark's and Arrow's raise many kinds
        return error
    return None


def shown(value: Any) -> str:
    """Return a value's text for a message, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_ROW else text[:_LONGEST_ROW] + "..."
