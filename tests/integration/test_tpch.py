"""TPC-H: its 22 queries, over what `tpchgen-cli` makes, give the same rows with and without GLOBAL WINDOW END OF STREAM."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

END = "GLOBAL WINDOW END OF STREAM"
SCALE = "0.1"
TABLES = "customer lineitem nation orders part partsupp region supplier".split()
QUERIES = dict(
    re.findall(r"^-- (Q\d+)\n(.*?);$", (Path(__file__).parents[1] / "fixtures/tpch.sql").read_text(), re.MULTILINE | re.DOTALL)
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch")
    generator = f"{sysconfig.get_path('scripts')}/tpchgen-cli"
    command = [generator, "parquet", "--scale-factor", SCALE, "--output-dir", str(folder), "--compression", "SNAPPY", "--quiet"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture
def tpch(spark: SparkSession, data: Path) -> Iterator[SparkSession]:
    for table in TABLES:
        spark.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(table)
    yield spark
    for table in TABLES:
        spark.catalog.dropTempView(table)


def test_all_queries_are_there() -> None:
    assert list(QUERIES) == [f"Q{number}" for number in range(1, 23)]
    assert all("{end}" in query for query in QUERIES.values())


@pytest.mark.parametrize("name", QUERIES)
def test_the_clause_changes_no_row(tpch: SparkSession, name: str) -> None:
    expected = tpch.sql(QUERIES[name].replace("{end}", ""))
    found = tpch.sql(QUERIES[name].replace("{end}", END))
    assert found.schema == expected.schema
    rows = expected.collect()
    assert found.collect() == rows
    assert rows
