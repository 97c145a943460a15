"""The named arguments of a table function that reads a source, as texts.

Relies on Spark's private side: reads Catalyst expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlext.errors import SchemaError


def is_named(argument: Any) -> bool:
    """Return whether an argument is `name => value`."""
    return str(argument.getClass().getSimpleName()) == "NamedArgumentExpression"


def named(function: str, arguments: Sequence[Any], usage: str) -> list[tuple[str, str]]:
    """Return names and values of arguments, in their order.

    Args:
        function: the function, for messages.
        arguments: the arguments, as Catalyst expressions.
        usage: how a call is written.

    Raises:
        SchemaError: an argument has no name, or its value is not constant.
    """
    found = []
    for argument in arguments:
        if not is_named(argument):
            raise SchemaError(f"{function} takes named arguments only. Write {usage}.")
        found.append((str(argument.key()), constant(function, str(argument.key()), argument.value())))
    return found


def each_once(function: str, given: Iterable[tuple[str, str]], key_of: Callable[[str], str]) -> dict[str, str]:
    """Return arguments by their keys.

    Args:
        given: names, as written, and values.
        key_of: returns the key that a name stands for; raises if it is none of the function's.

    Raises:
        SchemaError: one is given twice.
    """
    found: dict[str, str] = {}
    for name, value in given:
        key = key_of(name)
        if key in found:
            raise SchemaError(f"{function}: `{name}` is given twice. Give it once.")
        found[key] = value
    return found


def constant(function: str, name: str, value: Any) -> str:
    """Return the value of an argument.

    Raises:
        SchemaError: it is not constant, or NULL.
    """
    if not value.foldable():
        raise SchemaError(f"{function}: `{name}` is `{value.sql()}`, which is not a constant. Give a constant value.")
    found = value.eval(None)
    if found is None:
        raise SchemaError(f"{function}: `{name}` is NULL. Give a value, or leave the argument out.")
    return str(found).lower() if isinstance(found, bool) else str(found)
