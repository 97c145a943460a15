"""The query that AUTO CDC stands for.

Of each key, the change with the highest sequence counts, whatever order the changes come in and however often: a maximum. So a
flow over changes is one over an aggregate, kept as any other. Changes of one key with the same sequence are ordered, too: a
deletion comes after all others, and of these the one whose columns are greater, from left to right, comes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlext.errors import SchemaError, UnsupportedError, did_you_mean
from sqlext.plan.change_capture import ChangeCapture, ColumnChoice, Fragment
from sqlext.quoting import fold, quote, quote_string

START, END = "__START_AT", "__END_AT"
"""The columns of a table with history: the sequence of the change that began a version, and of that which ended it, or NULL."""
_CHANGE, _SEQUENCE, _IS_DELETE, _DELETED, _CHANGED = "__change", "__sequence", "__is_delete", "__deleted", "__changed"
_BEGINS, _RUN, _LIFE = "__begins", "__run", "__life"
_OWN = tuple(map(fold, (_CHANGE, _SEQUENCE, _IS_DELETE, _DELETED, _CHANGED, _BEGINS, _RUN, _LIFE, START, END)))


@dataclass(frozen=True)
class SourceColumn:
    """A column of the source.

    Attributes:
        has_order: whether its values can be compared, which those of maps cannot.
    """

    name: str
    has_order: bool = True


def query_of(capture: ChangeCapture, source: Sequence[SourceColumn], listed: Sequence[str] = ()) -> str:
    """Return the query whose rows are those of the table.

    Args:
        source: the columns of the source, in their order.
        listed: the columns of the table, in their order; none: those that AUTO CDC chooses, in the order of the source.

    Raises:
        SchemaError: a column that is named is not there.
        UnsupportedError: the changes of a column cannot be ordered.
    """
    columns = _Columns.of(capture, source, listed)
    if capture.keeps_history:
        return _history(capture, columns)
    return _newest(capture, columns)


@dataclass(frozen=True)
class _Columns:
    """The columns of the table: quoted names.

    Attributes:
        shown: all of them, in order.
        keys: those that identify a row.
        values: those that a change brings.
        tracked: those of `values` whose changes begin a new version.
    """

    shown: tuple[str, ...]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    tracked: tuple[str, ...]

    @classmethod
    def of(cls, capture: ChangeCapture, source: Sequence[SourceColumn], listed: Sequence[str]) -> _Columns:
        """Return the columns that the clauses and the column list of a statement choose among those of its source."""
        named = {fold(each.name): each for each in source}
        for name in (*capture.keys, *capture.columns.names, *capture.tracked.names):
            _check_named(name, source)
        keys = [fold(each.text) for each in capture.keys]
        left_out = next((each for each in capture.columns.names if capture.columns.is_except and fold(each.text) in keys), None)
        if left_out is not None:
            raise SchemaError(f"`{left_out.text}` is a key, so the table must have it.", left_out.position)
        own = {fold(each): quote(each) for each in ((START, END) if capture.keeps_history else ())}
        chosen = [key for key in named if key in keys or _chosen(capture.columns, key)]
        shown = [fold(each) for each in listed] or [*chosen, *own]
        _check_listed(capture, shown, keys, chosen, [*own])
        values = [each for each in shown if each not in keys and each not in own]
        for each in values:
            _check_column(capture, named[each])
        _check_tracked(capture, values)
        quoted = {key: quote(each.name) for key, each in named.items()} | own
        groups = (shown, keys, values, [each for each in values if _chosen(capture.tracked, each)])
        return cls(*(tuple(quoted[each] for each in group) for group in groups))


def _check_listed(capture: ChangeCapture, shown: list[str], keys: list[str], chosen: list[str], own: list[str]) -> None:
    """Check the columns of a column list: all of them are chosen, and all keys, and those of the history, are among them."""
    unknown = next((each for each in shown if each not in (*chosen, *own)), None)
    if unknown is not None:
        known = ", ".join((*chosen, *own))
        raise SchemaError(f"The table has a column `{unknown}`, but AUTO CDC brings {known}.", capture.position)
    missing = next((each for each in (*keys, *own) if each not in shown), None)
    if missing is not None:
        raise SchemaError(f"The column list lacks `{missing}`, which AUTO CDC writes. Add it.", capture.position)


def _check_tracked(capture: ChangeCapture, values: Sequence[str]) -> None:
    """Check that the columns of TRACK HISTORY ON are of the table and no keys: no change of another one is in a version."""
    other = next((each for each in capture.tracked.names if fold(each.text) not in values), None)
    if other is not None and not capture.tracked.is_except:
        raise SchemaError(
            f"TRACK HISTORY ON names `{other.text}`, whose changes begin no version: it is a key, or not in the table. "
            f"Beside its keys, it has {', '.join(values) or 'no column'}.",
            other.position,
        )


def _chosen(choice: ColumnChoice, name: str) -> bool:
    return (name in {fold(each.text) for each in choice.names}) is not choice.is_except


def _check_named(name: Fragment, source: Sequence[SourceColumn]) -> None:
    names = [each.name for each in source]
    if fold(name.text) not in map(fold, names):
        hint = did_you_mean(name.text, names)
        raise SchemaError(f"The source has no column `{name.text}`; it has {', '.join(names)}.{hint}", name.position)


def _check_column(capture: ChangeCapture, column: SourceColumn) -> None:
    if fold(column.name) in _OWN:
        raise SchemaError(f"`{column.name}` is a name of AUTO CDC's own. Rename the column in the source.", capture.position)
    if not column.has_order:
        raise UnsupportedError(
            f"AUTO CDC compares the columns of changes with the same sequence, and `{column.name}` holds maps or other values "
            f"without an order. Leave it out, COLUMNS * EXCEPT ({column.name}), or read a view that makes it a text by to_json.",
            capture.position,
        )


def _sequence(capture: ChangeCapture, keys: Sequence[Fragment]) -> str:
    """Return the sequence of a change; it fails where that or one of `keys` is NULL: such a change has no place in the order."""
    checks = [(quote(each.text), f"the key `{each.text}`") for each in keys]
    checks.append((f"({capture.sequence.text})", f"the sequence `{capture.sequence.text}`"))
    cases = "".join(
        f"WHEN {sql} IS NULL THEN raise_error({quote_string(f'AUTO CDC: {what} of a change is NULL. Filter such rows.')}) "
        for sql, what in checks
    )
    return f"CASE {cases}ELSE {capture.sequence.text} END"


def _changes(capture: ChangeCapture, keys: Sequence[str], columns: Sequence[str]) -> str:
    """Return the changes of keys, with columns beside their sequence and whether they delete."""
    is_delete = "FALSE" if capture.delete_when is None else f"coalesce({capture.delete_when.text}, FALSE)"
    own = [f"{_sequence(capture, capture.keys)} AS {quote(_SEQUENCE)}", f"{is_delete} AS {quote(_IS_DELETE)}"]
    where = "" if capture.truncate_when is None else f" WHERE NOT coalesce({capture.truncate_when.text}, FALSE)"
    return f"SELECT {', '.join([*keys, *own, *columns])} {capture.source.text}{where}"


# SCD type 1.


def _newest(capture: ChangeCapture, columns: _Columns) -> str:
    rows = _RowsIgnoringNulls(columns) if capture.ignores_nulls else _Rows(columns)
    keys = ", ".join(columns.keys)
    changes = f"SELECT {', '.join([*columns.keys, *rows.parts])} FROM ({_changes(capture, columns.keys, columns.values)})"
    if capture.truncate_when is None:
        newest = {each: f"max({each})" for each in rows.names}
        shown = ", ".join(_shown(columns, rows.values(newest)))
        return f"SELECT {shown} FROM ({changes}) GROUP BY {keys} HAVING {rows.condition(newest)}"
    newest = {each: f"r.{each}" for each in rows.names}
    kept = ", ".join([*columns.keys, *(f"max({each}) AS {each}" for each in rows.names)])
    sequence = f"SELECT {_sequence(capture, ())} AS s {capture.source.text} WHERE {capture.truncate_when.text}"
    end = "t.s"
    shown = ", ".join(_shown(columns, rows.values(newest, end), "r."))
    return (
        f"SELECT {shown} FROM (SELECT {kept} FROM ({changes}) GROUP BY {keys}) r "
        f"CROSS JOIN (SELECT max(s) AS s FROM ({sequence})) t WHERE {rows.condition(newest, end)}"
    )


def _shown(columns: _Columns, values: dict[str, str], prefix: str = "") -> list[str]:
    return [f"{values[each]} AS {each}" if each in values else f"{prefix}{each}" for each in columns.shown]


class _Rows:
    """The newest change of a key as one value, its sequence first: the maximum of these is the row."""

    def __init__(self, columns: _Columns) -> None:
        self._columns = columns.values
        self.names = [quote(_CHANGE)]
        self.parts = [f"struct({', '.join([quote(_SEQUENCE), quote(_IS_DELETE), *columns.values])}) AS {quote(_CHANGE)}"]

    def values(self, newest: dict[str, str], _end: str = "") -> dict[str, str]:
        (row,) = newest.values()
        return {each: f"{row}.{each}" for each in self._columns}

    def condition(self, newest: dict[str, str], end: str = "") -> str:
        """Return the condition that there is a row; `end` is the sequence up to which all changes are void."""
        (row,) = newest.values()
        after = f" AND ({end} IS NULL OR {row}.{quote(_SEQUENCE)} > {end})" if end else ""
        return f"NOT {row}.{quote(_IS_DELETE)}{after}"


class _RowsIgnoringNulls:
    """The newest value of each column with its sequence; values that are older than the last deletion are void."""

    def __init__(self, columns: _Columns) -> None:
        self._columns = columns.values
        sequence, is_delete = quote(_SEQUENCE), quote(_IS_DELETE)
        self._own = [quote(f"__value_{at}") for at, _ in enumerate(columns.values)]
        self.names = [quote(_DELETED), quote(_CHANGED), *self._own]
        self.parts = [
            f"CASE WHEN {is_delete} THEN {sequence} END AS {quote(_DELETED)}",
            f"CASE WHEN NOT {is_delete} THEN {sequence} END AS {quote(_CHANGED)}",
        ]
        for name, column in zip(self._own, columns.values, strict=True):
            value = f"struct({sequence}, {column} AS v)"
            self.parts.append(f"CASE WHEN NOT {is_delete} AND {column} IS NOT NULL THEN {value} END AS {name}")

    def values(self, newest: dict[str, str], end: str = "") -> dict[str, str]:
        own = dict(zip(self._columns, self._own, strict=True))
        is_valid = {each: self._is_after(f"{newest[name]}.{quote(_SEQUENCE)}", newest, end) for each, name in own.items()}
        return {each: f"CASE WHEN {is_valid[each]} THEN {newest[name]}.v END" for each, name in own.items()}

    def condition(self, newest: dict[str, str], end: str = "") -> str:
        """Return the condition that there is a row; `end` is the sequence up to which all changes are void."""
        return self._is_after(newest[quote(_CHANGED)], newest, end)

    def _is_after(self, sequence: str, newest: dict[str, str], end: str) -> str:
        deleted = newest[quote(_DELETED)]
        after = f"({deleted} IS NULL OR {sequence} > {deleted})"
        return f"{sequence} IS NOT NULL AND {after}" + (f" AND ({end} IS NULL OR {sequence} > {end})" if end else "")


# SCD type 2.


def _history(capture: ChangeCapture, columns: _Columns) -> str:
    """Return the versions of each key: runs of changes, none of them a deletion, that have the same tracked columns."""
    sequence, is_delete, begins, run = quote(_SEQUENCE), quote(_IS_DELETE), quote(_BEGINS), quote(_RUN)
    keys = ", ".join(columns.keys)
    tracked = f"struct({', '.join(columns.tracked)})" if columns.tracked else "1"
    by_key = f"PARTITION BY {keys} ORDER BY {sequence}"
    changes = _changes(capture, columns.keys, columns.values)
    flat = _filled(changes, columns, by_key) if capture.ignores_nulls else _each_once(changes, columns)
    is_first = (
        f"{is_delete} OR coalesce(lag({is_delete}) OVER ({by_key}), TRUE) OR NOT ({tracked} <=> lag({tracked}) OVER ({by_key}))"
    )
    begun = f"SELECT *, {is_first} AS {begins} FROM ({flat})"
    runs = f"SELECT *, count_if({begins}) OVER ({by_key}) AS {run} FROM ({begun})"
    newest = "".join(f", max_by({each}, {sequence}) AS {each}" for each in columns.values)
    versions = (
        f"SELECT {keys}{newest}, min({sequence}) AS {quote(START)}, bool_or({is_delete}) AS {is_delete} "
        f"FROM ({runs}) GROUP BY {keys}, {run}"
    )
    ended = f"SELECT *, lead({quote(START)}) OVER (PARTITION BY {keys} ORDER BY {quote(START)}) AS {quote(END)} FROM ({versions})"
    return f"SELECT {', '.join(columns.shown)} FROM ({ended}) WHERE NOT {is_delete}"


def _each_once(changes: str, columns: _Columns) -> str:
    """Return the change of each key and sequence that counts most."""
    sequence, change = quote(_SEQUENCE), quote(_CHANGE)
    keys, kept = ", ".join(columns.keys), [quote(_IS_DELETE), *columns.values]
    newest = f"max(struct({', '.join(kept)})) AS {change}"
    counting = f"SELECT {keys}, {sequence}, {newest} FROM ({changes}) GROUP BY {keys}, {sequence}"
    return f"SELECT {keys}, {sequence}, {', '.join(f'{change}.{each} AS {each}' for each in kept)} FROM ({counting})"


def _filled(changes: str, columns: _Columns, by_key: str) -> str:
    """Return a change for each key and sequence: its NULLs are the values of the change before, back to the last deletion.

    Of changes with the same sequence, each column has the greatest value, as with SCD type 1: no partial change is lost.
    """
    sequence, is_delete, life = quote(_SEQUENCE), quote(_IS_DELETE), quote(_LIFE)
    keys = ", ".join(columns.keys)
    values = "".join(f", max(CASE WHEN NOT {is_delete} THEN {each} END) AS {each}" for each in columns.values)
    flat = f"SELECT {keys}, {sequence}, max({is_delete}) AS {is_delete}{values} FROM ({changes}) GROUP BY {keys}, {sequence}"
    lives = f"SELECT *, count_if({is_delete}) OVER ({by_key}) AS {life} FROM ({flat})"
    over = f"OVER (PARTITION BY {keys}, {life} ORDER BY {sequence})"
    filled = "".join(f", last_value(CASE WHEN NOT {is_delete} THEN {each} END, TRUE) {over} AS {each}" for each in columns.values)
    return f"SELECT {keys}, {sequence}, {is_delete}{filled} FROM ({lives})"
