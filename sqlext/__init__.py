"""Streaming tables, buffered flushes and bounded stages for plain Spark SQL on Delta."""

from sqlext.registration import add_rule as register_rule
from sqlext.session import configure, disable, enable, register_function, register_reduce_function

__all__ = ["configure", "disable", "enable", "register_function", "register_reduce_function", "register_rule"]
