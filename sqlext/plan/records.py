"""Records of flows and jobs in a registry: a frozen dataclass as JSON, with the version of its format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlext.errors import SqlextError

T = TypeVar("T")


def lines_of(text: str) -> list[str]:
    """Return the lines of a file of JSON values, as Delta's and Spark's logs are.

    Only a line feed ends a line: other characters at which Python's `splitlines` divides, such as U+2028, may be in a value.
    """
    return [line for line in text.split("\n") if line]


def to_record(fields: Mapping[str, Any], version: int) -> str:
    """Return the JSON text of a record.

    Args:
        fields: the record's fields, by the names that they are stored under.
        version: the version of the format.
    """
    return json.dumps({"version": version, **fields}, sort_keys=True)


def from_record(text: str, what: str, version: int, make: Callable[[dict[str, Any]], T], error: type[SqlextError]) -> T:
    """Read a record.

    Args:
        text: the JSON text.
        what: what is recorded, for messages: "flow".
        version: the version of the format that this sqlext reads.
        make: makes the value of the stored fields; raises ValueError, KeyError, TypeError or AttributeError if they are torn.
        error: the class of the errors raised.

    Raises:
        SqlextError: the record is torn, or another version of sqlext wrote it.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        found = data.pop("version")
        if found == version:
            return make(data)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise error(f"The record of a {what} in the registry cannot be read: {type(problem).__name__}: {problem}.") from problem
    raise error(
        f"A {what} was recorded in version {found} of the registry's format; this sqlext reads version {version}. Use the sqlext "
        "that wrote it, or a home of its own (spark.sqlext.home)."
    )
