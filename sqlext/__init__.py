"""Streaming tables, buffered flushes and bounded stages for plain Spark SQL on Delta."""

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
