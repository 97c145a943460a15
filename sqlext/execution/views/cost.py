"""What a refresh costs. REFRESH POLICY AUTO: whether the changes alone would cost more than computing the query in full.

Two things are compared with what full refreshes are known to take. Before anything is read: how much of the sources' files has
changed, since a change is read as rows that came and rows that went. And what the view's own incremental refreshes took, by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from sqlext.execution.delta import commit
from sqlext.execution.delta.changes import ChangedFiles
from sqlext.execution.delta.delta_log import size_at
from sqlext.plan.view_spec import RefreshReport, SourceVersion

_MOST_CHANGED = 0.5
"""The share of the sources' bytes from which on a full refresh costs less: changes are read, compared and written."""
_MOST_CHANGED_TOGETHER = 0.05
"""The same of queries in which rows depend on others, which are then read too: with a tenth of TPC-H's rows changed, its queries
take twice as long incrementally as in full."""
_DEARER = 1.2
_WORTH_SECONDS = 1.0
"""A difference of less than this is not worth a full refresh, whose cost grows with the sources."""
_SMALL_BYTES = 4 * 1024**2
_LARGE_BYTES = 1024**2
_FOR_SMALL_SOURCES = {**commit.FEW_ROWS, "spark.sql.codegen.wholeStage": "false"}
PARTIALS_BYTES = 16 * 1024**2
"""The size of a view's sources from which on reading them again costs more than a table of partial results, and its commit."""


def full_costs_less(changed: Iterable[ChangedFiles | None], last: RefreshReport, is_row_by_row: bool) -> str:
    """Return why a full refresh costs less; empty: it does not, as far as is known.

    Args:
        changed: how much of each changed source's files has changed; None: not known.
        last: the newest refresh.
        is_row_by_row: whether each row of the query's result depends on one row of a source.
    """
    known = [each for each in changed if each is not None]
    bytes_changed, bytes_all = sum(each.changed for each in known), sum(each.all for each in known)
    most = _MOST_CHANGED if is_row_by_row else _MOST_CHANGED_TOGETHER
    if bytes_changed > max(most * bytes_all, _SMALL_BYTES):
        return f"{bytes_changed:,} of {bytes_all:,} bytes of the sources that changed are new or gone"
    full, alone = last.full_seconds, last.incremental_seconds
    if full and alone and alone > _DEARER * full and alone - full > _WORTH_SECONDS:
        return f"the last incremental refresh took {alone:.1f} s, the last one in full {full:.1f} s"
    return ""


def settings_for(spark: SparkSession, sources: Mapping[str, SourceVersion], reads_others: bool) -> Mapping[str, str]:
    """Return the settings for a refresh over small sources: what Spark prepares for many rows takes longer than few rows do.

    Args:
        spark: the session.
        sources: the tables that the query reads, at the versions that are read.
        reads_others: whether it reads what has no versions, and no known size.
    """
    sizes = [size_at(spark, each.location, each.version) for each in sources.values()]
    is_small = not reads_others and sum(_LARGE_BYTES if size is None else size.bytes for size in sizes) < _LARGE_BYTES
    return _FOR_SMALL_SOURCES if is_small else {}
