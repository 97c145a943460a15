"""Materialized views with partial results beside them: equal to batch after each change, and after a crash between commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.errors import PySparkException

from sqlext.execution.delta.changes import WEIGHT
from sqlext.execution.views import cost
from sqlext.execution.views.leaves import Delta
from sqlext.execution.views.merging import differences
from sqlext.execution.views.partial_table import PartialTable
from sqlext.execution.views.partials import Partials, partials_of
from sqlext.spark import jvm
from sqlext.spark.plans import Plans, analysed, output_of, tree_of
from sqlext.spark.storage import HadoopPath
from sqlext.testing import Moment, listened
from tests.integration.workshop import Workshop
from tests.support import rows

pytestmark = pytest.mark.usefixtures("lean")

QUERIES = {
    "by key": "SELECT k, avg(v) AS a, avg(w) AS aw, avg(d) AS ad, count(*) AS n, round(sum(d) / count(*), 1) AS r FROM o "
    "GROUP BY k",
    "one row": "SELECT avg(v) AS a, max(d) AS m, min(v) FILTER (WHERE v > 0) AS p, sum(v) FILTER (WHERE w > 9000) AS f FROM o",
    "having": "SELECT k, avg(d) + 1 AS ad, max(v) AS m FROM o GROUP BY k HAVING avg(d) > 20",
    "join": "SELECT c.region, sum(o.v) * 2 AS s, avg(o.d) FILTER (WHERE o.v > 0) AS a FROM o JOIN c ON o.k = c.k "
    "GROUP BY c.region",
    "first two": "SELECT k, sum(d) / 2 AS s FROM o GROUP BY k ORDER BY s DESC LIMIT 2",
    "one key of two": "SELECT upper(k) AS u, v % 3 AS g, avg(w) AS a, count(v) AS c FROM o GROUP BY k, v % 3",
    "window": "SELECT rank() OVER (ORDER BY avg(d) DESC) AS r, k FROM o GROUP BY k",
}
CHANGES = (
    "INSERT INTO o SELECT * FROM VALUES (60, 'a', 3, 9L, 1.5), (61, 'e', NULL, 5L, 100.25) AS v",
    "DELETE FROM o WHERE id % 9 = 0",
    "UPDATE o SET v = v + 1, d = d * 2 WHERE id % 5 = 1",
    "UPDATE c SET region = 'east' WHERE k = 'a'",
    "DELETE FROM o WHERE k = 'b'",
    "DELETE FROM o",
    "INSERT INTO o VALUES (1, 'a', 2, 3, 4)",
)
SOURCES = "id BIGINT, k STRING, v INT, w BIGINT, d DECIMAL(12, 2)"


@pytest.fixture
def tables(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setattr(cost, "PARTIALS_BYTES", 0)
    sql(f"CREATE TABLE o ({SOURCES}) USING delta")
    sql("CREATE TABLE c (k STRING, region STRING) USING delta")
    sql("INSERT INTO c VALUES ('a', 'north'), ('b', 'south'), ('c', 'north'), (NULL, 'nowhere')")
    key, value = (
        "element_at(array('a', 'b', 'c', 'd', NULL), cast(id * 7 % 5 AS INT) + 1)",
        "if(id % 7 = 0, NULL, cast(id % 13 AS INT) - 5)",
    )
    sql(f"INSERT INTO o SELECT id, {key}, {value}, id * 1000, cast(id * 1.37 AS DECIMAL(12, 2)) FROM range(50)")
    return sql


def last(sql: Workshop, view: str = "v") -> dict[str, Any]:
    """What the newest commit of a view says."""
    return dict(json.loads(sql(f"DESCRIBE HISTORY {view} LIMIT 1")[0].userMetadata)["sqlext"])


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_view_equals_its_query_after_each_change(tables: Workshop, query: str) -> None:
    tables(f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}")
    version = int(last(tables)["partials"])
    assert version >= 0
    for change in CHANGES:
        tables(change)
        tables("REFRESH MATERIALIZED VIEW v")
        assert tables.batch("SELECT * FROM v") == tables.batch(query), change
        done = last(tables)
        assert done["done"] in ("merge groups", "touched groups", "no change"), (change, done["because"])
        assert done["partials"] >= version, change
        version = done["partials"]


def test_after_a_crash_between_the_two_commits_nothing_is_added_twice(tables: Workshop) -> None:
    query = QUERIES["by key"]
    tables(f"CREATE MATERIALIZED VIEW v AS {query}")
    before = last(tables)

    def die(moment: Moment, _: str) -> None:
        if moment is Moment.PARTIALS_COMMITTED:
            raise InterruptedError("the process is gone")

    tables(CHANGES[0])
    with listened(die), pytest.raises(PySparkException, match="the process is gone"):
        tables("REFRESH MATERIALIZED VIEW v")
    assert last(tables) == before
    tables(CHANGES[2])
    tables("REFRESH MATERIALIZED VIEW v")
    assert tables.batch("SELECT * FROM v") == tables.batch(query)
    after = last(tables)
    assert (after["done"], after["refresh"]) == ("merge groups", before["refresh"] + 1)
    assert after["partials"] == before["partials"] + 3  # what was left, set back, and written again


def test_two_processes_that_add_to_the_same_version(tables: Workshop, tmp_path: Path) -> None:
    found, plans = kept_of(tables, "SELECT k, avg(v) AS a FROM o GROUP BY k"), Plans(tables.spark)
    place = HadoopPath(tables.spark, tmp_path.as_uri())
    one, other = (PartialTable(tables.spark, place, "v", "id") for _ in range(2))
    child = found.kept.aggregate.children[0].plan
    version = one.write(found.first(plans, child), lambda: None)
    expected = tables.batch("SELECT k, 2 * count(*) FROM o GROUP BY k")
    with jvm.active(tables.spark):
        weight = plans.named(plans.literal("1L"), WEIGHT)
        changed = Delta(plans.select(child, [*output_of(child), weight]), weight.toAttribute())
        added = differences(plans, found.kept, changed)
        before = one.begin(version, found.columns)
        there = other.add(other.begin(version, found.columns), found.kept, found.columns, added, 5)
        with pytest.raises(ConcurrentAppendException):
            one.add(before, found.kept, found.columns, added, 5)
        again = one.add(one.begin(version, found.columns), found.kept, found.columns, added, 5)
    assert again > there
    assert [rows(one.rows(each).select("p0", "p1")) for each in (there, again)] == [expected, expected]


def test_a_table_that_is_ahead_by_commits_without_rows(tables: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting it back changes nothing then, and is no reason to begin again."""
    found, plans, place = kept_of(tables, "SELECT k, avg(v) AS a FROM o GROUP BY k"), Plans(tables.spark), tmp_path.as_uri()
    table = PartialTable(tables.spark, HadoopPath(tables.spark, place), "v", "id")
    child = found.kept.aggregate.children[0].plan
    version = table.write(found.first(plans, child), lambda: None)
    expected = rows(table.rows(version))
    tables("SET spark.databricks.delta.vacuum.logging.enabled = true")
    tables(f"VACUUM delta.`{place}`")
    ahead = int(tables(f"DESCRIBE HISTORY delta.`{place}` LIMIT 1")[0].version)
    assert ahead > version
    begin, calls = PartialTable.begin, list[int]()

    def counted(self: PartialTable, *given: Any) -> Any:
        calls.append(1)
        assert len(calls) < 4, "it begins again and again"
        return begin(self, *given)

    monkeypatch.setattr(PartialTable, "begin", counted)
    begun = int(table.begin(version, found.columns).version())
    assert begun <= ahead + 1
    assert rows(table.rows(begun)) == expected
    tables(f"DELETE FROM delta.`{place}` WHERE true")
    assert rows(table.rows(int(table.begin(begun, found.columns).version()))) == expected


def kept_of(tables: Workshop, query: str) -> Partials:
    """The partial results of a query."""
    plans = Plans(tables.spark)
    found = partials_of(plans, tree_of(plans.normal(analysed(tables.spark.sql(query)))))
    assert found is not None
    return found


def test_a_view_whose_sources_have_grown_gets_partial_results(tables: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "PARTIALS_BYTES", 1024**3)
    tables(f"CREATE MATERIALIZED VIEW v AS {QUERIES['by key']}")
    tables(CHANGES[0])
    tables("REFRESH MATERIALIZED VIEW v")
    assert (last(tables)["done"], last(tables)["partials"]) == ("touched groups", -1)
    monkeypatch.setattr(cost, "PARTIALS_BYTES", 0)
    tables(CHANGES[1])
    tables("REFRESH MATERIALIZED VIEW v")
    assert last(tables)["because"] == "from now on, partial results are kept beside the view"
    tables(CHANGES[2])
    tables("REFRESH MATERIALIZED VIEW v")
    assert last(tables)["done"] == "merge groups"
    assert tables.batch("SELECT * FROM v") == tables.batch(QUERIES["by key"])


def test_a_column_of_a_wider_type(tables: Workshop) -> None:
    query = "SELECT k, max(v) AS m, avg(d) AS a FROM o GROUP BY k"
    tables("ALTER TABLE o SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    tables(f"CREATE MATERIALIZED VIEW v AS {query}")
    tables("ALTER TABLE o ALTER COLUMN v TYPE BIGINT")
    for number, done in ((3_000_000_000, "full"), (4_000_000_000, "merge groups")):
        tables(f"INSERT INTO o VALUES ({number}, 'a', {number}, 1, 1)")
        tables("REFRESH MATERIALIZED VIEW v")
        assert tables.batch("SELECT * FROM v") == tables.batch(query)
        assert last(tables)["done"] == done
        assert last(tables)["partials"] > 0


def test_averages_that_spark_rounds_are_computed_as_spark_does(tables: Workshop) -> None:
    query = "SELECT k, avg(w) AS a FROM o GROUP BY k"
    tables(f"CREATE MATERIALIZED VIEW v AS {query}")
    tables("INSERT INTO o SELECT id, 'e', 1, 9223372036854775000, 1 FROM range(3)")
    for expected in (-1, -2):  # in full without them; then it is known why
        tables("REFRESH MATERIALIZED VIEW v" + (" FULL" if expected == -2 else ""))
        assert tables.batch("SELECT * FROM v") == tables.batch(query)
        assert last(tables)["partials"] in (expected, -2)
    tables(CHANGES[0])
    tables("REFRESH MATERIALIZED VIEW v")
    assert (last(tables)["done"], last(tables)["partials"]) == ("touched groups", -2)
    assert tables.batch("SELECT * FROM v") == tables.batch(query)


def test_explain_says_so_and_drop_removes_them(tables: Workshop) -> None:
    lines = [row[0] for row in tables(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {QUERIES['by key']}")]
    assert any("from partial results beside the view" in line for line in lines)
    tables(f"CREATE MATERIALIZED VIEW v AS {QUERIES['by key']}")
    assert tables.installed.host is not None
    folder = HadoopPath(tables.spark, tables.installed.host.home).child("views", "partials", str(last(tables)["view"]))
    assert folder.exists()
    tables("DROP MATERIALIZED VIEW v")
    assert not folder.exists()
