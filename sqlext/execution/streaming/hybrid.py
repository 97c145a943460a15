"""A hybrid source as it runs: which of its relations a query reads, and where one ends and the next begins (FLIP-309).

Each relation is read by a query of its own, all over one checkpoint: those before the last to their ends, the last without end.
Spark keeps the offsets of each under its name (`spark.sql.streaming.queryEvolution.enableSourceEvolution`), so the checkpoint
itself identifies the relation that is being read. After a crash, a relation that was read to its end is looked at once more, and
rows added to it meanwhile count.

Relies on Spark's private side: names the sources in Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sqlext.errors import NotFoundError
from sqlext.execution.streaming.checkpoint import PARTITIONS, Checkpoint
from sqlext.execution.streaming.streams import leaves_of, with_relations
from sqlext.plan.job_graph import HybridSource
from sqlext.quoting import quote, quote_parts
from sqlext.spark.java import java_of
from sqlext.spark.sessions import NAMED_STREAMS
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

_BOUNDARY = "hybrid-boundary"
_EXACT = {"timestamp": ("unix_micros(found)", "timestamp_micros"), "binary": ("hex(found)", "unhex")}
"""Types whose values a cast to text and back would change: for each, how to write a value, and the function that reads it."""


class RunningHybrid:
    """A hybrid source that is being read. Used by one thread at a time.

    Args:
        session: the flow's own session.
        source: the hybrid source.
        checkpoint: the checkpoint of the query that reads it.
        home: the folder where the boundary is stored.
    """

    def __init__(self, session: SparkSession, source: HybridSource, checkpoint: Checkpoint, home: HadoopPath) -> None:
        self._session = session
        self._source = source
        self._checkpoint = checkpoint
        self._home = home
        self.part = 0

    @property
    def alias(self) -> str:
        """The alias of the source in the query."""
        return self._source.alias

    @property
    def is_last(self) -> bool:
        """Whether the current relation is the last, live one."""
        return self.part == len(self._source.relations) - 1

    @property
    def name(self) -> str:
        """The name of the current relation's offsets in the checkpoint."""
        return f"hybrid_{self.part}"

    @contextmanager
    def offsets_by_name(self) -> Iterator[None]:
        """Let Spark keep offsets by name in a query that starts within the block, which has settings of its own from then on.

        At any other time, the session must take streams without a name.
        """
        self._checkpoint.pin_partitions(str(self._session.conf.get(PARTITIONS)))
        with session_settings(self._session, NAMED_STREAMS):
            yield

    def show(self) -> None:
        """Let the view show the current relation."""
        frame = self._session.sql(self._source.relations[self.part].sql)
        if self.part and self._source.on:
            column, boundary = F.col(quote(self._source.on)), self._boundary_before(self.part)
            if boundary is not None:
                frame = frame.where((column > boundary) | column.isNull())
        frame.createOrReplaceTempView(self._source.name)

    def named(self, frame: DataFrame) -> DataFrame:
        """Return the query with a name for each of its sources; the checkpoint still knows those of other relations."""
        spark = self._session
        names = java_of(spark).org.apache.spark.sql.catalyst.streaming
        changed = []
        for leaf in leaves_of(frame, [self._source.alias]):
            name = self.name if leaf.alias == self._source.alias else f"source_{leaf.at}"
            changed.append((leaf.relation, leaf.relation.withSourceIdentifyingName(names.UserProvided(name))))
        return with_relations(frame, changed)

    def advance(self) -> None:
        """Move to the next relation, after the current one has ended."""
        if self._source.on:
            self._write_boundary()
        self.part += 1

    def find_part(self) -> None:
        """Find the relation that the newest micro-batch read, whether it has ended or not."""
        found = self._checkpoint.planned(self._checkpoint.newest_planned).offsets
        parts = [int(name.removeprefix("hybrid_")) for name in found if name.startswith("hybrid_")]
        self.part = max(parts, default=0)

    # The boundary: rows of later relations count only if they are greater. Each relation has a boundary of its own, so that one
    # which is looked at again after a crash is not compared with its own rows.

    def _write_boundary(self) -> None:
        """Store the greatest value among all rows that were read, of this relation and of those before."""
        offset = self._checkpoint.planned(self._checkpoint.newest_committed).offsets.get(self.name)
        if offset is None:  # there was no row
            return
        name = self._source.relations[self.part].name
        end: dict[str, Any] = json.loads(offset)
        version = int(end["reservoirVersion"]) - (1 if int(end["index"]) < 0 else 0)
        rows = self._session.sql(f"SELECT * FROM {quote_parts(name)} VERSION AS OF {version}")  # noqa: S608  # quoted
        greatest = F.max(quote(self._source.on))
        if (before := self._boundary_before(self.part)) is not None:
            greatest = F.greatest(before, greatest)  # it skips nulls
        found = rows.agg(greatest.alias("found"))
        kind = found.schema["found"].dataType.simpleString()
        encode, decode = _EXACT.get(kind, ("CAST(found AS STRING)", ""))
        (row,) = found.selectExpr(encode).collect()
        if row[0] is not None:
            self._boundary_of(self.part).write_text(json.dumps({"value": row[0], "type": kind, "decode": decode}))

    def _boundary_before(self, part: int) -> Column | None:
        """Return the value that the rows of a relation must exceed; None: all rows count."""
        files = (self._boundary_of(earlier) for earlier in reversed(range(part)))
        for file in (*files, self._home.child(_BOUNDARY)):  # the last file is from versions with a single boundary
            with suppress(NotFoundError):
                found: dict[str, str] = json.loads(file.read_text())
                value = F.lit(found["value"])
                return value.cast(found["type"]) if not found.get("decode") else F.call_function(found["decode"], value)
        return None

    def _boundary_of(self, part: int) -> HadoopPath:
        return self._home.child(f"{_BOUNDARY}-{part}")
