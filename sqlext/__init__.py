"""Streaming tables, buffered flushes and bounded stages for plain Spark SQL on Delta."""

from sqlext.backlog_reports import register_backlog_report
from sqlext.execution.cogroup import cogroup
from sqlext.execution.keyed import process_keyed
from sqlext.execution.partition import Order, full_window_partition, window_all
from sqlext.keyed_functions import (
    KeyedContext,
    KeyedProcessFunction,
    ListState,
    MapState,
    RuntimeContext,
    ValueState,
    register_keyed_function,
)
from sqlext.partition_functions import AggregateFunction
from sqlext.registration import add_rule as register_rule
from sqlext.session import (
    configure,
    disable,
    enable,
    register_function,
    register_partition_function,
    register_reduce_function,
)

__all__ = [
    "AggregateFunction",
    "KeyedContext",
    "KeyedProcessFunction",
    "ListState",
    "MapState",
    "Order",
    "RuntimeContext",
    "ValueState",
    "cogroup",
    "configure",
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
