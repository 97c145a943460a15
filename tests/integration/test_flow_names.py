"""Flows are found as tables are: by the current catalog and database, in any case, and one of a name in each schema."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from sqlext.page.stored import StoredHome
from tests.integration.workshop import BUFFERED, COUNTS, Workshop, local


@pytest.fixture
def two(sql: Workshop) -> Workshop:
    """A flow `t` in each of two schemas; the sources differ."""
    for schema, value in (("r", 1), ("S", 100)):
        sql(f"CREATE SCHEMA {schema}")
        sql(f"USE {schema}")
        sql("CREATE TABLE ev (k STRING, v INT) USING delta")
        sql(f"INSERT INTO ev VALUES ('a', {value})")
        sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("USE default")
    return sql


def statuses(sql: Workshop) -> dict[str, str]:
    return {row.name: row.status for row in sql("SHOW FLOWS")}


def test_two_schemas_have_a_flow_each(two: Workshop) -> None:
    two("USE r")
    two("WAIT FLOW t")
    two("WAIT FLOW S.T")
    assert two.batch("SELECT * FROM r.t") == [("a", 1, 1)]
    assert two.batch("SELECT * FROM s.t") == [("a", 1, 100)]
    assert statuses(two) == {"r.t": "RUNNING", "s.t": "RUNNING"}
    assert {row.full_name for row in two("SHOW FLOWS")} == {"spark_catalog.r.t", "spark_catalog.s.t"}

    two("STOP FLOW T")
    assert statuses(two) == {"r.t": "STOPPED", "s.t": "RUNNING"}
    two("START FLOW spark_catalog.R.t")
    two("ALTER FLOW t SET ('execution.flush.max-interval' = '5 minutes')")
    two("FLUSH FLOW t")
    options = {
        name: next(row.value for row in two(f"DESCRIBE FLOW {name}") if row.property == "option execution.flush.max-interval")
        for name in ("t", "s.t")
    }
    assert options == {"t": "5 minutes (table property)", "s.t": "10 minutes (table property)"}


def test_a_drop_hits_the_current_schema_only(two: Workshop) -> None:
    two("USE s")
    two("DROP FLOW IF EXISTS t")
    assert [(row.name, row.target) for row in two("SHOW FLOWS")] == [("t", "spark_catalog.r.t")]
    two("DROP FLOW IF EXISTS t")
    with pytest.raises(
        PySparkException, match=r"There is no flow `t` in spark_catalog\.s\. There is `spark_catalog\.r\.t`\. SHOW FLOWS"
    ):
        two("WAIT FLOW t")
    assert len(two("SHOW FLOWS")) == 1


def test_both_are_resumed(two: Workshop) -> None:
    two.crash()
    two("INSERT INTO r.ev VALUES ('a', 2)")
    assert two.resume() == ["t", "t"]
    two("WAIT FLOW r.t")
    assert two.batch("SELECT * FROM r.t") == [("a", 2, 3)]
    assert {view[0] for view in two.host.flows.local_views()} == {"r.t", "s.t"}


def test_a_flow_of_its_own_name_lies_in_the_schema_that_is_current(sql: Workshop) -> None:
    sql.source()
    for schema in ("r", "s"):
        sql(f"CREATE SCHEMA {schema}")
        sql(f"USE {schema}")
        sql("CREATE TABLE copy (k STRING, v INT) USING delta")
        sql("CREATE FLOW f AS INSERT INTO copy SELECT k, v FROM STREAM default.ev")
        sql("WAIT FLOW F")
        with pytest.raises(PySparkException, match="There is a flow `f` already"):
            sql("CREATE FLOW F AS INSERT INTO default.ev SELECT k, v FROM STREAM default.ev")
    sql("CREATE FLOW IF NOT EXISTS F AS INSERT INTO copy SELECT k, v FROM STREAM default.ev")
    assert {(row.name, row.target) for row in sql("SHOW FLOWS")} == {
        ("r.f", "spark_catalog.r.copy"),
        ("s.f", "spark_catalog.s.copy"),
    }
    sql("DROP FLOW s.f")
    assert [row.name for row in sql("SHOW FLOWS")] == ["f"]


def test_an_insert_is_called_like_its_table(sql: Workshop) -> None:
    sql.source()
    sql("CREATE SCHEMA s")
    sql("CREATE TABLE s.copy (k STRING, v INT) USING delta")
    sql("INSERT INTO s.copy SELECT k, v FROM STREAM ev")
    sql("USE s")
    sql("WAIT FLOW Copy")
    assert sql.batch("SELECT * FROM copy") == sql.batch("SELECT * FROM default.ev")


def test_a_report_of_a_warehouse_at_rest_asks_for_the_schema(two: Workshop) -> None:
    stored = StoredHome(local(two.host.home).parent)
    assert [flow.name for flow in stored.overview().flows] == ["r.t", "s.t"]
    with pytest.raises(LookupError, match=r"several flows or views `t`: `spark_catalog\.r\.t`, `spark_catalog\.s\.t`\. Give"):
        stored.detail("t")
    assert stored.detail("s.T").summary.target == "spark_catalog.s.t"
