"""What tests of flows are made of: statements, looks inside, and what happens to a process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from sqlext.extension.session import Installation
from sqlext.quoting import quote_parts
from sqlext.testing import FlowProcess
from tests.support import commits, rows

DEADLINE = 180.0
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total FROM {} GROUP BY k"
BUFFERED = "TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')"
LEAN = {  # no code is generated and no plan is made twice for a few rows, which have one task after a shuffle
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}

Write = Callable[[str, str], Path]
"""Writes a file below the landing folder, as one that is moved there, and returns it."""


class Workshop(FlowProcess):
    """The statements and looks inside that the tests are made of."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self.spark = spark

    def __call__(self, sql: str) -> list[Any]:
        return self.spark.sql(sql).collect()

    @property
    def installed(self) -> Installation:
        return self._installed

    def shown(self, name: str) -> Any:
        """The flow's row in SHOW FLOWS."""
        return next(row for row in self("SHOW FLOWS") if row.name == name)

    def home(self, name: str) -> Path:
        """The flow's folder; `name` may be qualified, or be one that only quotes hold."""
        parts = name.split(".") if re.fullmatch(r"[\w.]+", name) else [name]
        return local(next(row.value for row in self(f"DESCRIBE FLOW {quote_parts(parts)}") if row.property == "home"))

    def commits(self, table: str) -> list[dict[str, Any]]:
        return commits(self(f"DESCRIBE DETAIL {table}")[0].location)

    def batch(self, sql: str) -> list[tuple[Any, ...]]:
        return rows(self.spark.sql(sql))

    def source(self, name: str = "ev", using: str = "delta") -> None:
        self(f"CREATE TABLE {name} (k STRING, v INT) USING {using}")
        self(f"INSERT INTO {name} VALUES ('a', 1), ('b', 2), (NULL, 3)")

    def equals_batch(self, table: str = "t", source: str = "ev") -> bool:
        return self.batch(f"SELECT k, n, total FROM {table}") == self.batch(COUNTS.format(source))


def local(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def are_contiguous(found: list[dict[str, Any]]) -> bool:
    """Whether every micro-batch from 0 on is in one commit, and in order."""
    nexts = [0, *(commit["last_batch"] + 1 for commit in found)]
    return [commit["first_batch"] for commit in found] == nexts[:-1]
