"""The users' additions to sqlext: rewrite rules and SQL functions."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType

from sqlext.errors import NameTakenError, RuleError, did_you_mean
from sqlext.functions.results import over_array, with_declared_type
from sqlext.functions.scalar import PythonFunction
from sqlext.rules import BATCHES
from sqlext.sql.rewriter import Batch, Rule

_lock = threading.Lock()  # guards _batches
_batches: tuple[Batch, ...] = BATCHES


def rules_in_force() -> tuple[Batch, ...]:
    """Return all batches, including the rules that users registered."""
    return _batches


def add_rule(rule: Rule, batch: str = "user") -> None:
    """Add a rewrite rule at the end of a batch, as `SparkSessionExtensions` does for Catalyst.

    Args:
        rule: a function that takes a copy of the query's sqlglot tree, may change it, and returns it.
        batch: the name of the batch that it is added to.

    Raises:
        RuleError: the rule is not a named function, or there is no such batch.
        NameTakenError: a rule of that name is already registered.
    """
    global _batches
    name = getattr(rule, "__name__", "")
    if not callable(rule) or not name:
        raise RuleError(f"{rule!r} is not a rule. A rule is a named function from a query's tree to a query's tree.")
    with _lock:
        names = [each.name for each in _batches]
        if batch not in names:
            raise RuleError(f"There is no batch `{batch}`.{did_you_mean(batch, names)} The batches are {', '.join(names)}.")
        if any(name == known.__name__ for each in _batches for known in each.rules):
            raise NameTakenError(f"A rule `{name}` is already registered. Give yours another name.")
        _batches = tuple(replace(each, rules=(*each.rules, rule)) if each.name == batch else each for each in _batches)


def remove_rule(name: str) -> None:
    """Remove a rule from its batch."""
    global _batches
    with _lock:
        _batches = tuple(replace(each, rules=tuple(r for r in each.rules if r.__name__ != name)) for each in _batches)


def sql_functions(function: PythonFunction) -> dict[str, Any]:
    """Return the Spark functions, by name, that a Python function becomes.

    An aggregate becomes two: a grouped aggregate for batch queries, and a function over a list for streams, which cannot run a
    grouped aggregate (`rules/python_aggregate_over_list.py`).
    """
    kind = DataType.fromDDL(function.returns)
    typed = with_declared_type(function.name, function.function, kind)

    def call(*arguments: Any) -> Any:  # without type hints: Spark would guess an Arrow function from them, and warn
        return typed(*arguments)

    call.__name__ = function.over_list_name if function.is_aggregate else function.name  # as plans show it, in each session
    plain = F.udf(call, kind, useArrow=False)  # Spark 4.2 can hang in Arrow UDFs over columnar input
    if not function.is_aggregate:
        return {function.name: plain}
    grouped = over_array(typed, kind)
    grouped.__name__ = function.name  # the name of the column in a query without an alias
    made = arrow_udf(grouped, kind)  # type: ignore[call-overload]  # its stubs want literal types
    return {function.over_list_name: plain, function.name: made}
