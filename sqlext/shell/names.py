"""The names of a session, for completion: read when first needed, and again after each statement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row

from sqlext.errors import SqlextError
from sqlext.quoting import quote, sql_name

logger = logging.getLogger(__name__)


class Names(Protocol):
    """The names of a session, each with a short description."""

    def flows(self) -> Mapping[str, str]: ...

    def jobs(self) -> Mapping[str, str]: ...

    def relations(self, database: str = "") -> Mapping[str, str]:
        """Return the tables and views of a database; without a database, those of the current one, and all databases."""

    def words(self) -> Sequence[str]:
        """Return Spark's keywords."""

    def functions(self) -> Sequence[str]: ...


class SessionNames:
    """The names of a session. Completion must not fail: a query that fails gives no names.

    Only the main thread uses it.

    Args:
        rows: runs a statement and returns its rows.
    """

    def __init__(self, rows: Callable[[str], Sequence[Row]]) -> None:
        self._rows_of = rows
        self._known: dict[str, Mapping[str, str]] = {}  # until the next statement
        self._lasting: dict[str, Sequence[str]] = {}

    def forget(self) -> None:
        """Forget the names that a statement may have changed."""
        self._known.clear()

    def flows(self) -> Mapping[str, str]:
        here = [str(part) for row in self._rows("SELECT current_catalog(), current_schema()") for part in row]
        short = f"{sql_name(here)}."

        def entry(row: Row) -> tuple[str, str]:
            name = str(row["full_name"]).removeprefix(short)
            return name.strip("`"), f"{row['kind']}, {str(row['status']).lower()}"

        return self._mapping("SHOW FLOWS", entry)

    def jobs(self) -> Mapping[str, str]:
        return self._mapping("SHOW JOBS", lambda row: (str(row["id"]), f"{row['status']}, {row['target']}"))

    def relations(self, database: str = "") -> Mapping[str, str]:
        where = f" IN {quote(database)}" if database else ""
        found = dict(self._mapping(f"SHOW TABLES{where}", lambda row: (str(row["tableName"]), "table")))
        views = self._mapping(f"SHOW VIEWS{where}", lambda row: (str(row["viewName"]), "view"))
        databases = {} if database else self._mapping("SHOW DATABASES", lambda row: (str(row[0]), "database"))
        return {**databases, **found, **views}

    def words(self) -> Sequence[str]:
        return self._once("SELECT keyword FROM sql_keywords()")

    def functions(self) -> Sequence[str]:
        return [name for name in self._once("SHOW FUNCTIONS") if name.isidentifier() and not name.startswith("__")]

    def _mapping(self, text: str, entry: Callable[[Row], tuple[str, str]]) -> Mapping[str, str]:
        if text not in self._known:
            self._known[text] = dict(map(entry, self._rows(text)))
        return self._known[text]

    def _once(self, text: str) -> Sequence[str]:
        if text not in self._lasting:
            self._lasting[text] = [str(row[0]) for row in self._rows(text)]
        return self._lasting[text]

    def _rows(self, text: str) -> Sequence[Row]:
        try:
            return self._rows_of(text)
        except (PySparkException, Py4JError, SqlextError, OSError) as error:
            logger.info("no names for completion from %s: %s", text, error)
            return []
