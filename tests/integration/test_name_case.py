"""Names follow `spark.sql.caseSensitive` where flows are made and run; and what is no name is not taken for a node of a plan."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.streaming.streams import leaves_of
from sqlext.spark import jvm
from tests.integration.workshop import Workshop


@pytest.fixture
def sensitive(sql: Workshop) -> Iterator[Workshop]:
    sql("SET spark.sql.caseSensitive = TRUE")
    yield sql
    sql("RESET spark.sql.caseSensitive")


def test_streams_that_differ_by_case_have_options_of_their_own(sensitive: Workshop) -> None:
    sensitive.source()
    sensitive.source("ex")
    sensitive(
        "CREATE STREAMING TABLE t AS SELECT T.k, t.v FROM STREAM ev WITH ('execution.checkpointing.interval-during-backlog' = "
        "'0') AS T JOIN STREAM ex AS t ON T.k = t.k"
    )
    sensitive("WAIT FLOW t")
    spec = sensitive.flow("t").spec
    assert {source.alias: any(source.given.values()) for source in spec.sources} == {"T": True, "t": False}
    frame = sensitive.spark.sql("SELECT T.k FROM STREAM ev AS T JOIN STREAM ex AS t ON T.k = t.k")
    assert sorted(leaf.alias for leaf in leaves_of(frame, ["T", "t"])) == ["T", "t"]
    assert sensitive.batch("SELECT * FROM t") == sensitive.batch("SELECT T.k, t.v FROM ev AS T JOIN ex AS t ON T.k = t.k")


def test_columns_that_differ_by_case_are_no_key_of_one_another(sensitive: Workshop) -> None:
    sensitive.source()
    query = "SELECT k, count(*) AS K FROM {} GROUP BY k"
    with pytest.raises(PySparkException, match="`k` and `K` differ by case only"):
        sensitive(f"CREATE STREAMING TABLE t (a, b) AS {query.format('STREAM ev')}")
    sensitive("CREATE TABLE there (a STRING, b BIGINT) USING delta")
    sensitive(f"INSERT INTO there {query.format('STREAM ev')}")
    for _ in range(2):
        sensitive("WAIT FLOW there")
        assert sensitive.batch("SELECT * FROM there") == sensitive.batch(query.format("ev"))
        sensitive("INSERT INTO ev VALUES ('a', 7), ('c', 8)")
    sensitive("WAIT FLOW there")
    assert sensitive.batch("SELECT * FROM there") == sensitive.batch(query.format("ev"))


def test_a_text_is_no_watermark(sql: Workshop) -> None:
    assert not jvm.has_watermark(sql.spark.sql("SELECT 'EventTimeWatermark' AS EventTimeWatermark"))
    sql("CREATE TABLE at (ts TIMESTAMP) USING delta")
    late = sql.spark.readStream.table("at").withWatermark("ts", "1 minute")
    late.createOrReplaceTempView("late")
    assert jvm.has_watermark(sql.spark.sql("WITH c AS (SELECT * FROM late) SELECT count(*) FROM c"))
    assert [leaf.has_watermark for leaf in leaves_of(late, ())] == [True]
