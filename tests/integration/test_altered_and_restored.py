"""What statements on flows do to one another: another query, savepoints, and groups with a time to live."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from sqlext.testing import Moment, listened
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")

MEAN = "SELECT k, avg(v) AS mean FROM STREAM ev GROUP BY k"
WIDER = "SELECT k, avg(v) AS mean, count(*) AS n FROM STREAM ev GROUP BY k"
OTHER = "SELECT k, avg(v) AS mean, max(v) AS top FROM STREAM ev GROUP BY k"


def assert_equal(sql: Workshop, query: str) -> None:
    sql("INSERT INTO ev VALUES ('a', 10), ('c', NULL), (NULL, 7)")
    sql("WAIT FLOW t")
    batch = query.replace("STREAM ", "")
    assert sql.spark.table("t").columns == sql.spark.sql(batch).columns
    assert sql.batch("SELECT * FROM t") == sql.batch(batch)


def test_a_flow_goes_back_over_a_change_of_its_query_and_gets_another_one(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {MEAN}")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS one")
    sql(f"ALTER FLOW t AS {WIDER}")
    assert_equal(sql, WIDER)
    sql("SAVEPOINT FLOW t AS two")
    sql("RESTORE FLOW t TO one")
    assert_equal(sql, MEAN)
    sql(f"ALTER FLOW t AS {OTHER}")
    assert_equal(sql, OTHER)
    sql.crash()
    assert sql.resume() == ["t"]
    assert_equal(sql, OTHER)
    sql("RESTORE FLOW t TO two")
    assert_equal(sql, WIDER)


@pytest.mark.parametrize(("moment", "query"), [(Moment.ALTERATION_STATE_COMMITTED, MEAN), (Moment.ALTERATION_COMMITTED, OTHER)])
def test_a_crash_while_a_restored_flow_is_altered(sql: Workshop, moment: Moment, query: str) -> None:
    """The table has seen the number of a query before, of the flow as it was before it was restored."""
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {MEAN}")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS one")
    sql(f"ALTER FLOW t AS {WIDER}")
    sql("RESTORE FLOW t TO one")
    sql("WAIT FLOW t")

    def crash(announced: Moment, _: str) -> None:
        if announced is moment:
            sql.crash()
            assert sql.resume() == ["t"]
            raise RuntimeError("the driver dies here")

    with listened(crash), pytest.raises(PySparkException):
        sql(f"ALTER FLOW t AS {OTHER}")
    assert_equal(sql, query)


def test_a_flow_with_a_time_to_live_goes_back_and_keeps_its_query(sql: Workshop) -> None:
    sql.source()
    sql("CREATE STREAMING TABLE t AS SELECT /*+ STATE_TTL(ev, '7 days') */ k, count(DISTINCT v) AS n FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS one")
    query = "SELECT k, count(DISTINCT v) AS n FROM STREAM ev GROUP BY k"
    assert_equal(sql, query)
    sql("RESTORE FLOW t TO one")
    assert_equal(sql, query)
    with pytest.raises(PySparkException, match=r"the state of its groups ends \(table\.exec\.state\.ttl\)"):
        sql("ALTER FLOW t AS SELECT /*+ STATE_TTL(ev, '7 days') */ k, count(*) AS m FROM STREAM ev GROUP BY k")
    assert_equal(sql, query)
