"""Streaming tables, buffered flushes and bounded stages for plain Spark SQL on Delta.

Names are imported when they are first used: Spark's Python workers import this package to find the functions that they run, and
have neither delta-spark nor sqlglot.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlext.execution.delta.changes import changes_of as changes
    from sqlext.execution.keyed.keyed import process_keyed
    from sqlext.execution.partitions.cogroup import cogroup
    from sqlext.execution.partitions.partition import Order, full_window_partition, window_all
    from sqlext.execution.views.consistent import consistent_versions
    from sqlext.extension.session import (
        configure,
        disable,
        enable,
        register_function,
        register_partition_function,
        register_reduce_function,
    )
    from sqlext.functions.backlog_reports import register_backlog_report
    from sqlext.functions.keyed import (
        KeyedContext,
        KeyedProcessFunction,
        ListState,
        MapState,
        RuntimeContext,
        ValueState,
        register_keyed_function,
    )
    from sqlext.functions.partition import AggregateFunction
    from sqlext.planner.rule_book import add_rule as register_rule

__all__ = [
    "AggregateFunction",
    "KeyedContext",
    "KeyedProcessFunction",
    "ListState",
    "MapState",
    "Order",
    "RuntimeContext",
    "ValueState",
    "changes",
    "cogroup",
    "configure",
    "consistent_versions",
    "disable",
    "enable",
    "full_window_partition",
    "process_keyed",
    "register_backlog_report",
    "register_function",
    "register_keyed_function",
    "register_partition_function",
    "register_reduce_function",
    "register_rule",
    "window_all",
]

_HOMES = {
    "execution.delta.changes": "changes",
    "execution.keyed.keyed": "process_keyed",
    "execution.partitions.cogroup": "cogroup",
    "execution.partitions.partition": "Order full_window_partition window_all",
    "execution.views.consistent": "consistent_versions",
    "extension.session": "configure disable enable register_function register_partition_function register_reduce_function",
    "functions.backlog_reports": "register_backlog_report",
    "functions.keyed": "KeyedContext KeyedProcessFunction ListState MapState RuntimeContext ValueState register_keyed_function",
    "functions.partition": "AggregateFunction",
    "planner.rule_book": "register_rule",
}
_CALLED_THERE = {"changes": "changes_of", "register_rule": "add_rule"}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name from its module (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), _CALLED_THERE.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
