"""What tests of flows are made of: statements, looks inside, and what happens to a process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from sqlext.execution.flows.flow import Flow
from sqlext.execution.host import Host
from sqlext.extension import session as sqlext_session
from sqlext.quoting import quote_parts
from tests.support import commits, rows

DEADLINE = 180.0
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total FROM {} GROUP BY k"
BUFFERED = "TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')"


class Workshop:
    """The statements and looks inside that the tests are made of."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def __call__(self, sql: str) -> list[Any]:
        return self.spark.sql(sql).collect()

    @property
    def installed(self) -> Any:
        return sqlext_session._installations[self.spark.sparkContext.applicationId]

    @property
    def host(self) -> Host:
        return sqlext_session.host_of(self.spark)

    def flow(self, name: str) -> Flow:
        """The flow of this process; `name` is without its schema, unless several have it."""
        end = name.split(".")
        return next(flow for flow in self.host.flows.all.values() if list(flow.spec.qualified_name[-len(end) :]) == end)

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

    # What happens to a process.

    def freeze(self) -> Host:
        """The process hangs: its streams run, but nobody looks at the clock, so nothing is flushed for being due or idle."""
        host = self.host
        host._closing.set()
        host.flows._supervisor.close()
        host._closed.set()
        host._ticker.join()
        return host

    def take_in(self, name: str) -> None:
        """Let a flow take what has arrived into its buffer."""
        for intake in self.flow(name)._intakes:
            assert intake.query is not None
            intake.query.processAllAvailable()

    def crash(self) -> None:
        """What a killed process leaves behind: buffers are not flushed, and the registry says that its flows run."""
        host = self.freeze()
        for flow in host.flows.all.values():
            flow._stopping = True
            flow._stop_queries()
            flow._backlog.close()
            flow._flusher.close(DEADLINE)
        host._lease.end()
        self.installed.host = None

    def resume(self) -> list[str]:
        return self.host.flows.resume()


def local(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


def are_contiguous(found: list[dict[str, Any]]) -> bool:
    """Whether every micro-batch from 0 on is in one commit, and in order."""
    nexts = [0, *(commit["last_batch"] + 1 for commit in found)]
    return [commit["first_batch"] for commit in found] == nexts[:-1]
