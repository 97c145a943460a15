"""The ranges of keys that are observed of a micro-batch."""

from __future__ import annotations

from pyspark.sql import Observation, SparkSession

from sqlext.execution.delta import key_ranges
from sqlext.execution.delta.key_ranges import KeyRanges, Range


def test_a_column_with_a_text_that_is_no_utf8_has_no_range(spark: SparkSession) -> None:
    """As from a binary key of Kafka's: Python would make another text of it."""
    found = []
    for texts in ("x'C3A9', x'61'", "x'80', x'61'"):
        observation = Observation()
        rows = spark.sql(f"SELECT CAST(b AS STRING) AS k, 1 AS n FROM (SELECT explode(array({texts})) AS b)")
        ranges = KeyRanges(rows.schema, ["k", "n"])
        rows.observe(observation, *ranges.metrics).collect()
        count, values, bounds = ranges.observed(observation.get)
        assert (count, values) == (2, 0)
        found.append(bounds)
    number = Range(1, 1, False)
    assert found == [{"k": Range("a", "\xe9", False), "n": number}, {"n": number}]
    assert key_ranges.union(found) == {"n": number}
