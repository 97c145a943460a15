"""The types of keyed state: DDL parsed without a JVM, since workers have none, and a cheap check of each value that is written.

This module also has the checks that both backends make: states are created only in open(), and a name has one type.

Where the state is in Spark, Spark's own parser decides on a type; here only the class of a column's values is checked.
"""

from __future__ import annotations

import datetime
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from pyspark.sql.types import StructType

from sqlext.errors import KeyedFunctionError, SchemaError, did_you_mean
from sqlext.functions.keyed import ListState, MapState, RuntimeContext, ValueState

_KIND_OF_WORD: dict[str, type | None] = {
    "BOOLEAN": bool,
    **dict.fromkeys(("BYTE", "TINYINT", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT"), int),
    **dict.fromkeys(("FLOAT", "REAL", "DOUBLE"), float),
    **dict.fromkeys(("DECIMAL", "DEC", "NUMERIC"), Decimal),
    **dict.fromkeys(("STRING", "CHAR", "CHARACTER", "VARCHAR"), str),
    "BINARY": bytes,
    "DATE": datetime.date,
    "TIME": datetime.time,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"), datetime.datetime),
    "ARRAY": list,
    "MAP": dict,
    "STRUCT": tuple,
    **dict.fromkeys(("INTERVAL", "VARIANT", "VOID", "GEOMETRY", "GEOGRAPHY"), None),  # of several classes, or of Spark's own
}
_TOKEN = re.compile(r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[<>(),:]|[^\s<>(),:`'"]+""")


@dataclass(frozen=True)
class StateType:
    """The type of a state's values.

    Attributes:
        subject: the state or key with this type, for messages.
        columns: the DDL of each column, for messages.
        kinds: the class of each column's values; None: values of any class are accepted.
    """

    subject: str
    columns: tuple[str, ...]
    kinds: tuple[type | None, ...]

    @classmethod
    def of(cls, subject: str, schema: str | StructType) -> StateType:
        """Read a type from DDL, such as `n BIGINT, s STRING`, or a StructType.

        Raises:
            SchemaError: the type cannot be read.
        """
        ddl = schema
        if isinstance(schema, StructType):
            ddl = ", ".join(f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}" for field in schema)
        if not isinstance(ddl, str):
            raise SchemaError(f"{subject} has the type {schema!r}. Give DDL, such as 'n BIGINT', or a StructType.")
        columns = tuple(_columns(subject, ddl))
        return cls(subject, tuple(" ".join(words) for words in columns), tuple(_kind(subject, ddl, words) for words in columns))

    @property
    def kind(self) -> type | None:
        """The class of the values if it is the only check that they need, else None."""
        return self.kinds[0] if len(self.kinds) == 1 else None

    def conform(self, value: Any) -> Any:
        """Convert a value to the form that the state keeps: a tuple if there are several columns.

        Raises:
            SchemaError: the value is not of this type.
        """
        kinds = self.kinds
        if type(value) is tuple and tuple(map(type, value)) == kinds and len(kinds) > 1:
            return value
        if len(kinds) == 1:
            return self._conform(value, 0)
        if not isinstance(value, tuple) or len(value) != len(kinds):
            raise SchemaError(f"{self.subject} takes tuples of ({', '.join(self.columns)}); this is {_shown(value)}.")
        return tuple(self._conform(each, index) for index, each in enumerate(value))

    def conform_key(self, value: Any) -> Any:
        """Convert a key of a map, as `conform` does a value.

        Raises:
            SchemaError: the key is not of this type, or is NaN.
        """
        key = self.conform(value)
        if any(each != each for each in (key if isinstance(key, tuple) else (key,))):
            raise SchemaError(f"{self.subject} cannot be NaN, which equals nothing.")
        return key

    def _conform(self, value: Any, index: int) -> Any:
        kind = self.kinds[index]
        if value is None or kind is None or type(value) is kind:
            return value
        if isinstance(value, np.generic):
            value = value.item()
        if kind is float and type(value) is int:
            return float(value)
        if kind is bytes and isinstance(value, bytearray):
            return bytes(value)
        is_other = (kind is int and isinstance(value, bool)) or (kind is datetime.date and isinstance(value, datetime.datetime))
        if isinstance(value, kind) and not is_other:
            return value
        raise SchemaError(f"{self.subject} takes `{self.columns[index]}`, Python's {kind.__name__}; this is {_shown(value)}.")


class StatesOfOpen(RuntimeContext):
    """Creates the states of a function while its open() runs. The same name and type return the same state again.

    The subclass of a backend implements `_make`.
    """

    __slots__ = ("_is_open", "_schemas", "_states")

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}
        self._schemas: dict[str, tuple[str, ...]] = {}
        self._is_open = True

    def end_open(self) -> None:
        """Refuse to create states from now on: open() has returned."""
        self._is_open = False

    def get_value_state(self, name: str, schema: str | StructType) -> ValueState:
        made: ValueState = self._made("value", name, [schema], StateType.of(f"The state `{name}`", schema))
        return made

    def get_list_state(self, name: str, schema: str | StructType) -> ListState:
        made: ListState = self._made("list", name, [schema], StateType.of(f"The state `{name}`", schema))
        return made

    def get_map_state(self, name: str, key_schema: str | StructType, value_schema: str | StructType) -> MapState:
        key_type = StateType.of(f"A key of the state `{name}`", key_schema)
        for column, kind in zip(key_type.columns, key_type.kinds, strict=True):
            if kind in (list, dict):
                raise SchemaError(f"A key of the state `{name}` cannot be `{column}`. Use a STRUCT, or several columns.")
        value_type = StateType.of(f"The state `{name}`", value_schema)
        made: MapState = self._made("map", name, [key_schema, value_schema], key_type, value_type)
        return made

    def _made(self, kind: str, name: str, schemas: Sequence[str | StructType], *types: StateType) -> Any:
        if not self._is_open:
            raise KeyedFunctionError(f"The state `{name}` is requested after open() has returned. Request states only in open().")
        shape = (kind, *(", ".join(each.columns) for each in types))
        if self._schemas.setdefault(name, shape) != shape:
            raise SchemaError(f"There is a state `{name}` of another type already. Give this one another name.")
        if name not in self._states:
            self._states[name] = self._make(kind, name, schemas, types)
        return self._states[name]

    @abstractmethod
    def _make(self, kind: str, name: str, schemas: Sequence[str | StructType], types: Sequence[StateType]) -> Any:
        """Create a state of kind `value`, `list` or `map`; for a map, `schemas` and `types` are those of key and value."""


def _columns(subject: str, ddl: str) -> list[list[str]]:
    """Split DDL into the words of each column: its name and its type."""
    columns: list[list[str]] = [[]]
    depth = 0
    for word in _TOKEN.findall(ddl):
        depth += (word in "<(") - (word in ">)")
        if depth < 0:
            break
        if word == "," and not depth:
            columns.append([])
        elif word != ":" or len(columns[-1]) != 1:  # `n: BIGINT` is `n BIGINT`
            columns[-1].append(word)
    if depth or not all(columns):
        raise SchemaError(f"{subject} has the type `{ddl}`, which cannot be read. Write it as 'n BIGINT, s STRING'.")
    return columns


def _kind(subject: str, ddl: str, words: list[str]) -> type | None:
    if len(words) == 1 or words[1] in "<(":  # no name, but a type alone
        raise SchemaError(f"{subject} has the type `{ddl}`, in which a column has no name. Write `value {' '.join(words)}`.")
    word = words[1].upper()
    if word not in _KIND_OF_WORD:
        raise SchemaError(f"{subject} has the type `{ddl}`, but there is no type {words[1]}.{did_you_mean(word, _KIND_OF_WORD)}")
    return _KIND_OF_WORD[word]


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 200 else text[:200] + '...'}, of type {type(value).__name__}"
