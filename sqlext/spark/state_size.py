"""The size of a flow's state, as Spark and Delta know it already: nothing is listed, and no job runs.

Relies on Delta's private side: the snapshot that it keeps of a table in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.delta_tables import known_files
from sqlext.spark.java import items_of, java_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StateSize:
    """The size of state.

    Attributes:
        rows: the number of its rows, such as groups; None: not known.
        bytes: of its files, or of the memory that it takes; None: not known.
    """

    rows: int | None = None
    bytes: int | None = None


def total(sizes: Iterable[StateSize]) -> StateSize:
    """Return the sum of sizes; what is not known of one is not known of the sum.

    >>> total([StateSize(2, 100), StateSize(None, 20)])
    StateSize(rows=None, bytes=120)
    """
    every = tuple(sizes)
    rows, number = [each.rows for each in every if each.rows is not None], len(every)
    size = [each.bytes for each in every if each.bytes is not None]
    return StateSize(sum(rows) if len(rows) == number else None, sum(size) if len(size) == number else None)


def of_table(spark: SparkSession, location: str) -> StateSize:
    """Return the size of the newest version of a Delta table that this process has seen. Never raises.

    Delta keeps the size with each version (Delta's protocol, "Version Checksum File"), and the rows of each of up to 50 files.
    Where it does not, the size is not known: `Snapshot.sizeInBytesIfKnown` would compute it, in Spark jobs over the table's log.
    """
    try:
        snapshot = (
            java_of(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location).unsafeVolatileSnapshot()
        )
        checksum = snapshot.checksumOpt()
        files = known_files(snapshot)
        rows = [] if files is None else [each.numLogicalRecords() for each in items_of(files)]
        is_known = files is not None and all(each.isDefined() for each in rows)
        return StateSize(
            sum(int(each.get()) for each in rows) if is_known else None,
            int(checksum.get().tableSizeBytes()) if checksum.isDefined() else None,
        )
    except Exception:  # a figure that is not known must not disturb the flow
        logger.debug("the size of %s is not known", location, exc_info=True)
        return StateSize()


def of_report(progress: Any) -> StateSize | None:
    """Return the memory of the state that Spark keeps for a streaming query.

    Its rows are not known: RocksDB would have to read before each write to count them, and flows have that turned off.

    Args:
        progress: Spark's report of the query.

    Returns:
        None: it keeps none.
    """
    operators = list(progress.stateOperators())
    sizes = [StateSize(bytes=int(each.memoryUsedBytes())) for each in operators]
    return total(sizes) if sizes else None
