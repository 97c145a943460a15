"""A hybrid source as it runs: which of its relations a query reads, and where one ends and the next begins (FLIP-309).

Each relation is read by a query of its own over one checkpoint: those before the last to their ends, the last without end. Spark
keeps the offsets of each under its name (`spark.sql.streaming.queryEvolution.enableSourceEvolution`), so the checkpoint itself
tells which relation is read. A relation that was read to its end is looked at once more after a crash; what came to it meanwhile
counts.
This is a seam: it names the sources in Catalyst's plans. Seen with Spark 4.2.
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
from sqlext.spark.storage import HadoopPath

_SETTINGS = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}
"""What a session needs while such a query starts; at any other time, Spark would refuse streams that have no name."""
_BOUNDARY = "hybrid-boundary"
_EXACT = {"timestamp": ("unix_micros(found)", "timestamp_micros"), "binary": ("hex(found)", "unhex")}
"""Types whose values do not come back from a text as they were: by name, how to write one, and the function that reads it."""


class RunningHybrid:
    """Used by one thread at a time.

    Args:
        session: the flow's own.
        source: the hybrid source.
        checkpoint: of the query that reads it.
        home: where the boundary is kept.
    """

    def __init__(self, session: SparkSession, source: HybridSource, checkpoint: Checkpoint, home: HadoopPath) -> None:
        self._session = session
        self._source = source
        self._checkpoint = checkpoint
        self._home = home
        self.part = 0

    @property
    def alias(self) -> str:
        return self._source.alias

    @property
    def is_last(self) -> bool:
        """Whether the live relation is read."""
        return self.part == len(self._source.relations) - 1

    @property
    def name(self) -> str:
        """The name that offsets of the relation which is read stand under."""
        return f"hybrid_{self.part}"

    @contextmanager
    def offsets_by_name(self) -> Iterator[None]:
        """Let Spark keep offsets by name, in the query that starts here; it has settings of its own from then on."""
        self._checkpoint.pin_partitions(str(self._session.conf.get(PARTITIONS)))
        for key, value in _SETTINGS.items():
            self._session.conf.set(key, value)
        try:
            yield
        finally:
            for key in _SETTINGS:
                self._session.conf.unset(key)

    def show(self) -> None:
        """Let the view be the relation that is to be read."""
        frame = self._session.sql(self._source.relations[self.part].sql)
        if self.part and self._source.on:
            column, boundary = F.col(quote(self._source.on)), self._boundary_before(self.part)
            if boundary is not None:
                frame = frame.where((column > boundary) | column.isNull())
        frame.createOrReplaceTempView(self._source.name)

    def named(self, frame: DataFrame) -> DataFrame:
        """The query with a name for each of its sources; those of other relations stay known to the checkpoint."""
        spark = self._session
        names = java_of(spark).org.apache.spark.sql.catalyst.streaming
        changed = []
        for leaf in leaves_of(frame, [self._source.alias]):
            name = self.name if leaf.alias == self._source.alias else f"source_{leaf.at}"
            changed.append((leaf.relation, leaf.relation.withSourceIdentifyingName(names.UserProvided(name))))
        return with_relations(frame, changed)

    def advance(self) -> None:
        """Go on with the next relation; that which is read has ended."""
        if self._source.on:
            self._write_boundary()
        self.part += 1

    def find_part(self) -> None:
        """Go on with the relation that the newest micro-batch read, whether it has ended or not."""
        found = self._checkpoint.planned(self._checkpoint.newest_planned).offsets
        parts = [int(name.removeprefix("hybrid_")) for name in found if name.startswith("hybrid_")]
        self.part = max(parts, default=0)

    # The boundary: rows of later relations count only if they are greater. Each relation has its own, so that one which is looked
    # at again after a crash is not held against itself.

    def _write_boundary(self) -> None:
        """The greatest value among all rows that were read, of this relation and those before."""
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
        """What rows of a relation must be greater than; None: they all count."""
        files = (self._boundary_of(earlier) for earlier in reversed(range(part)))
        for file in (*files, self._home.child(_BOUNDARY)):  # the last one is from before relations had their own
            with suppress(NotFoundError):
                found: dict[str, str] = json.loads(file.read_text())
                value = F.lit(found["value"])
                return value.cast(found["type"]) if not found.get("decode") else F.call_function(found["decode"], value)
        return None

    def _boundary_of(self, part: int) -> HadoopPath:
        return self._home.child(f"{_BOUNDARY}-{part}")
