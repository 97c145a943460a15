"""Functions that users register in this process, by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from sqlext.errors import NameTakenError, NotFoundError, SchemaError, did_you_mean


class NamedFunction(Protocol):
    """A function with a name."""

    @property
    def name(self) -> str:
        """Its name in SQL."""


class OperatorFunction(NamedFunction, Protocol):
    """A named function of one operator."""

    @property
    def operator(self) -> str:
        """The SQL table function that calls it."""


F = TypeVar("F", bound=NamedFunction)
G = TypeVar("G", bound=OperatorFunction)


class NamedFunctions(Generic[F]):
    """The registered functions of one kind; the case of a name does not matter.

    The lock guards the dict; any thread may call any method.

    Args:
        kind: the kind's name in messages, such as `function`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._functions: dict[str, F] = {}

    def add(self, function: F) -> None:
        """Add a function; the same function may be added again.

        Raises:
            NameTakenError: another function is registered under its name.
        """
        with self._lock:
            there = self._functions.setdefault(function.name.lower(), function)
        if there != function:
            raise NameTakenError(f"There is a {self._kind} `{there.name}` already. Register yours under another name.")

    def find(self, name: str) -> F | None:
        """Return the function of a name; None if there is none."""
        with self._lock:
            return self._functions.get(name.lower())

    def __iter__(self) -> Iterator[F]:
        with self._lock:
            return iter(sorted(self._functions.values(), key=lambda function: function.name.lower()))


class OperatorFunctions(NamedFunctions[G]):
    """The registered functions of one kind, each for one operator."""

    def get(self, name: str, operator: str) -> G:
        """Return the function of a name that an operator calls.

        Raises:
            NotFoundError: there is none of that name; the message names the nearest one.
            SchemaError: the function is for another operator.
        """
        function = self.find(name)
        if function is None:
            known = [each.name for each in self if each.operator == operator]
            there = f" Those of {operator} are {', '.join(known)}." if known else f" None is registered for {operator} yet."
            raise NotFoundError(f"There is no {self._kind} `{name}`.{did_you_mean(name, known)}{there}")
        if function.operator != operator:
            raise SchemaError(f"{operator} cannot call `{function.name}`: it is registered for {function.operator}.")
        return function
