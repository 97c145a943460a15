"""What the documentation says replaces code and statements of others gives what they give."""

from __future__ import annotations

from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql.functions import count

from sqlext import docs
from sqlext.sql.scripts import split
from tests import readme
from tests.integration.workshop import Workshop


def test_a_flow_goes_on_where_foreach_batch_was_stopped(sql: Workshop, tmp_path: Path) -> None:
    text = docs.page("foreachbatch").text
    sql("CREATE TABLE page_hits (page STRING) USING delta")
    sql("CREATE TABLE page_totals (page STRING, views BIGINT) USING delta")
    sql("INSERT INTO page_hits VALUES ('home'), ('home'), ('docs'), (NULL)")
    names = {"spark": sql.spark, "DeltaTable": DeltaTable, "count": count, "checkpoint": str(tmp_path / "checkpoint")}
    exec(readme.blocks(text, "python")[0], names)  # the page's own code
    query = names["query"]
    query.processAllAvailable()  # type: ignore[attr-defined]
    query.stop()  # type: ignore[attr-defined]
    batch = "SELECT page, count(*) AS views FROM page_hits GROUP BY page"
    assert sql.batch("SELECT * FROM page_totals") == sql.batch(batch)

    sql("INSERT INTO page_hits VALUES ('docs'), ('blog')")
    for statement in split(readme.blocks(text, "sql")[0]):
        sql(statement.text)
    sql("WAIT FLOW page_totals")
    assert sql.batch("SELECT * FROM page_totals") == sql.batch(batch)


def test_spark_can_analyse_what_replaces_flink_s_statements(sql: Workshop) -> None:
    (statement,) = split(readme.blocks(docs.page("flink").text, "sql")[0])
    plan = sql(f"EXPLAIN {statement.text}")[0].plan
    assert "upsert by window_start, customer" in plan
