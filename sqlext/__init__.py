"""Streaming tables, buffered flushes and bounded stages for plain Spark SQL on Delta."""

from sqlext.execution.partition import Order, full_window_partition
from sqlext.partition_functions import AggregateFunction
from sqlext.registration import add_rule as register_rule
from sqlext.session import configure, disable, enable, register_function, register_reduce_function

__all__ = [
    "AggregateFunction",
    "Order",
    "configure",
    "disable",
    "enable",
    "full_window_partition",
    "register_function",
    "register_reduce_function",
    "register_rule",
]
