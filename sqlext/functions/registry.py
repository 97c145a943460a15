"""Functions that users register in this process, by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from sqlext.errors import NameTakenError, NotFoundError, SchemaError, did_you_mean


class NamedFunction(Protocol):
    @property
    def name(self) -> str: ...


class OperatorFunction(NamedFunction, Protocol):
    @property
    def operator(self) -> str: ...


F = TypeVar("F", bound=NamedFunction)
G = TypeVar("G", bound=OperatorFunction)


class NamedFunctions(Generic[F]):
    """The functions of a kind; the case of a name does not matter.

    The lock guards the dict; any thread may call any method.

    Args:
        kind: for messages, such as `function`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._functions: dict[str, F] = {}

    def add(self, function: F) -> None:
        """Add a function; the same one may be added again.

        Raises:
            NameTakenError: another function is registered under its name.
        """
        with self._lock:
            there = self._functions.setdefault(function.name.lower(), function)
        if there != function:
            raise NameTakenError(f"There is a {self._kind} `{there.name}` already. Register yours under another name.")

    def find(self, name: str) -> F | None:
        """The function of a name, if there is one."""
        with self._lock:
            return self._functions.get(name.lower())

    def __iter__(self) -> Iterator[F]:
        with self._lock:
            return iter(sorted(self._functions.values(), key=lambda function: function.name.lower()))


class OperatorFunctions(NamedFunctions[G]):
    """Functions of which each is for one operator."""

    def get(self, name: str, operator: str) -> G:
        """The function that an operator calls.

        Raises:
            NotFoundError: there is none of that name; says which one is near.
            SchemaError: it is for another operator.
        """
        function = self.find(name)
        if function is None:
            known = [each.name for each in self if each.operator == operator]
            there = f" Those of {operator} are {', '.join(known)}." if known else f" There is none for {operator} yet."
            raise NotFoundError(f"There is no {self._kind} `{name}`.{did_you_mean(name, known)}{there}")
        if function.operator != operator:
            raise SchemaError(f"{operator} cannot call `{function.name}`: it is registered for {function.operator}.")
        return function
