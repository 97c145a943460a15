"""The counts that Spark takes of rows while it computes them are those of a query that counts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sqlext.spark import jvm
from sqlext.spark.row_counts import RowCounts
from sqlext.spark.settings import session_settings

CONDITIONS = {"small": "v < 30", "null": "v IS NULL", "odd": "v % 2 = 1", "all": "true", "none": "false"}
QUERIES = [
    "SELECT * FROM {t}",
    "SELECT * FROM {t} WHERE v >= 20",
    "SELECT * FROM (SELECT k, v + 1 AS v FROM {t}) WHERE k <> 3 AND v > 10",
    "SELECT a.k, b.v FROM {t} a JOIN {t} b ON a.k = b.k AND b.v > 10 WHERE a.v < 90",
    "SELECT k, v FROM {t} UNION ALL SELECT k, -v FROM {t} WHERE v > 50",
    "SELECT k, max(v) AS v FROM {t} GROUP BY k HAVING max(v) > 40",
    "SELECT DISTINCT k, v % 10 AS v FROM {t}",
    "SELECT k, v FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v) AS n FROM {t}) WHERE n < 4",
    "SELECT k, explode(array(v, v + 1)) AS v FROM {t}",
    "SELECT k, halved(v) AS v FROM {t} WHERE halved(v) > 5",
    "SELECT * FROM VALUES (1, 5), (2, NULL), (3, 77) AS r(k, v)",
    "SELECT * FROM {t} WHERE false",
]
GENERATED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.mark.parametrize("settings", [GENERATED, INTERPRETED], ids=["generated", "interpreted"])
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_counts_are_those_of_a_query(spark: SparkSession, tmp_path: Path, kind: str, settings: dict[str, str]) -> None:
    rows = spark.range(100).selectExpr("id % 7 AS k", "if(id % 9 = 0, NULL, id) AS v")
    place = f"{kind}.`{tmp_path / 't'}`"
    rows.write.format(kind).save(f"{tmp_path / 't'}")
    spark.udf.register("halved", lambda v: None if v is None else v // 2, "BIGINT")
    for query in QUERIES:
        with session_settings(spark, settings):
            frame = spark.sql(query.format(t=place))
            counts = RowCounts(frame, {name: F.expr(each) for name, each in CONDITIONS.items()})
            kept = counts.rows.where("v % 3 = 0")  # what is above does not come before the counts
            with jvm.held(kept) as held:
                assert sorted(held.collect()) == sorted(frame.where("v % 3 = 0").collect()), query
            expected = frame.agg(*(F.count_if(F.expr(each)).alias(name) for name, each in CONDITIONS.items())).first()
            assert expected is not None
            assert counts.values() == expected.asDict(), query
