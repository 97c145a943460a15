"""Rules of Spark's optimizer that fail on the micro-batches of some streams, and are left out there.

Relies on Spark's private side: reads Catalyst plans, and names rules. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from sqlext.spark.plans import analysed, kind, nodes_of

_EXCLUDED = "spark.sql.optimizer.excludedRules"
_ALIASES = "org.apache.spark.sql.catalyst.optimizer.RemoveRedundantAliases"


def sound_rules(frame: DataFrame) -> Mapping[str, str]:
    """Return the settings with which a streaming query must be started, so that such rules are left out.

    Args:
        frame: the analysed query.
    """
    if not _has_grouping_sets_and_union(frame):
        return {}
    given = frame.sparkSession.conf.get(_EXCLUDED, None)
    return {_EXCLUDED: f"{given},{_ALIASES}" if given else _ALIASES}


def _has_grouping_sets_and_union(frame: DataFrame) -> bool:
    """Return whether a query has both.

    Spark renames the columns that a micro-batch reads to those of the query. Taking such names away, in the first branch of a
    UNION ALL, leaves the Expand of ROLLUP, CUBE or GROUPING SETS with a column that is not there: the stream would fail with
    PLAN_VALIDATION_FAILED_RULE_IN_BATCH. The rule only makes plans smaller.
    """
    kinds = {kind(node) for node in nodes_of(analysed(frame))}
    return {"Expand", "Union"} <= kinds
