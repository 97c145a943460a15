"""Streams added to the UNION ALL of a flow, by their names: ALTER FLOW .. AS and CREATE OR REFRESH, without a new start."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException

from sqlext.testing import Moment, listened
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")

SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM ({}) GROUP BY k"
MEANS = "SELECT k, avg(v) AS mean FROM ({}) GROUP BY k HAVING count(*) > 1"
FORMS = {
    "rows": ("{}", ""),
    "shaped": ("SELECT upper(k) AS k, v + 1 AS v FROM ({}) WHERE v > 0", ""),
    "state in the table": (SUMS, ""),
    "state beside": (MEANS, ""),
    "state in rocksdb": (SUMS, "TBLPROPERTIES ('state.backend.type' = 'rocksdb')"),
}


def union(*names: str) -> str:
    return " UNION ALL ".join(f"SELECT k, v FROM STREAM {name} IDENTIFIED BY {name}" for name in names)


def as_batch(query: str) -> str:
    for name in "abcd":
        query = query.replace(f"STREAM {name} IDENTIFIED BY {name}", name)
    return query


def come(sql: Workshop, value: int) -> None:
    for name in "abcd":
        sql(f"INSERT INTO {name} VALUES ('k', {value}), ('{name}', {value}), (NULL, NULL)")


def equals_batch(sql: Workshop, query: str) -> bool:
    sql("WAIT FLOW t")
    return sql.batch("SELECT * FROM t") == sql.batch(as_batch(query))


@pytest.fixture(autouse=True)
def sources(sql: Workshop) -> None:
    for name in "abcd":
        sql(f"CREATE TABLE {name} (k STRING, v INT) USING delta")
    come(sql, 1)


@pytest.mark.parametrize(("form", "properties"), FORMS.values(), ids=FORMS)
def test_the_table_is_the_batch_query_over_more_streams(sql: Workshop, form: str, properties: str) -> None:
    query = form.format(union("a"))
    sql(f"CREATE STREAMING TABLE t {properties} AS {query}")
    assert equals_batch(sql, query)
    flow = sql.shown("t").id
    query = form.format(union("a", "b"))
    planned = sql(f"EXPLAIN ALTER FLOW t AS {query}")[0].plan
    assert "stays as it is: the added stream `b` is read from its beginning, and the others on from where they are" in planned
    before = sql.commits("t")
    assert "the added stream `b` is read from its beginning" in sql(f"ALTER FLOW t AS {query}")[0][0]
    assert equals_batch(sql, query)
    assert sql.commits("t")[: len(before)] == before
    come(sql, 2)
    assert equals_batch(sql, query)
    sql.crash()
    come(sql, 3)
    assert sql.resume() == ["t"]
    assert equals_batch(sql, query)
    query = form.format(union("a", "c", "b", "d"))
    said = sql(f"CREATE OR REFRESH STREAMING TABLE t {properties} AS {query}")[0][0]
    assert "the added streams `c`, `d` are read from their beginning" in said
    assert equals_batch(sql, query)
    come(sql, -4)
    assert equals_batch(sql, query)
    assert sql.shown("t").id == flow


@pytest.mark.parametrize("form", [FORMS["rows"][0], SUMS], ids=["rows", "sums"])
@pytest.mark.parametrize("moment", [Moment.FLUSH_COMMITTED], ids=str)
def test_a_micro_batch_that_a_crash_has_left_is_completed_without_the_new_stream(
    sql: Workshop, form: str, moment: Moment
) -> None:
    query = form.format(union("a", "b"))
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ('execution.flush.max-interval' = '1 h') AS {query}")
    assert equals_batch(sql, query)

    def dies(reached: Moment, flow: str) -> None:
        if reached is moment:
            raise ValueError("died here")

    come(sql, 2)
    with listened(dies), pytest.raises(PySparkException, match="died here"):
        sql("WAIT FLOW t")
    query = form.format(union("a", "b", "c"))
    with pytest.raises(PySparkException, match="does not run, and not all that it has read is in its table"):
        sql(f"ALTER FLOW t AS {query}")
    sql.crash()
    sql.resume()
    sql("START FLOW t")
    sql(f"ALTER FLOW t AS {query}")
    assert equals_batch(sql, query)


def test_a_stopped_flow_gets_its_streams_and_reads_them_when_it_starts(sql: Workshop) -> None:
    query = union("a", "b")
    sql(f"CREATE STREAMING TABLE t AS {query}")
    assert equals_batch(sql, query)
    sql("STOP FLOW t")
    come(sql, 2)
    query = union("a", "b", "c")
    sql(f"ALTER FLOW t AS {query}")
    assert sql.shown("t").status == "STOPPED"
    sql("START FLOW t")
    assert equals_batch(sql, query)


def test_a_savepoint_of_fewer_streams_goes_back_to_its_query(sql: Workshop) -> None:
    query = SUMS.format(union("a"))
    sql(f"CREATE STREAMING TABLE t AS {query}")
    assert equals_batch(sql, query)
    sql("SAVEPOINT FLOW t AS before")
    wider = SUMS.format(union("a", "b"))
    sql(f"ALTER FLOW t AS {wider}")
    assert equals_batch(sql, wider)
    come(sql, 2)
    sql("RESTORE FLOW t TO before")
    sql("START FLOW t")
    assert equals_batch(sql, query)
    sql(f"ALTER FLOW t AS {wider}")
    assert equals_batch(sql, wider)


WATERMARKED = "SELECT window(ts, '1 minute').start AS w, count(*) AS n FROM ({}) GROUP BY window(ts, '1 minute')"


def test_what_cannot_go_on_is_refused_and_nothing_is_touched(sql: Workshop) -> None:
    query = union("a", "b")
    sql(f"CREATE STREAMING TABLE t AS {query}")
    assert equals_batch(sql, query)
    refused = {
        union("c", "a", "b"): "the first branch of its UNION ALL is new",
        union("a"): "both append rows",
        union("a", "c"): "both append rows",
        query.replace("SELECT k, v", "SELECT k, v + 1 AS v", 1) + " UNION ALL " + union("c"): "both append rows",
        f"{query} UNION ALL SELECT k, CAST(v AS BIGINT) FROM STREAM c IDENTIFIED BY c": "both append rows",
        f"{query} UNION ALL SELECT k, v FROM STREAM t IDENTIFIED BY t": "itself",
        f"{query} UNION ALL SELECT k, v FROM STREAM c": "This stream has no name, and others of the query have one",
    }
    for wrong, because in refused.items():
        for verb in ("", "EXPLAIN "):
            with pytest.raises(PySparkException, match=because):
                sql(f"{verb}ALTER FLOW t AS {wrong}")
    with pytest.raises(AnalysisException, match=r"UNRESOLVED_COLUMN.*`nothing`"):
        sql(f"ALTER FLOW t AS {query} UNION ALL SELECT k, nothing FROM STREAM c IDENTIFIED BY c")
    come(sql, 2)
    assert equals_batch(sql, query)


def test_a_watermark_and_a_state_below_are_refused(sql: Workshop) -> None:
    for name in "ef":
        sql(f"CREATE TABLE {name} (ts TIMESTAMP) USING delta")
    one, two = (
        " UNION ALL ".join(
            f"SELECT ts FROM STREAM {name} IDENTIFIED BY {name} WATERMARK ts DELAY OF INTERVAL 1 MINUTE" for name in names
        )
        for names in ("e", "ef")
    )
    sql(f"CREATE STREAMING TABLE t AS {WATERMARKED.format(one)}")
    with pytest.raises(PySparkException, match="a watermark has passed rows that an added stream still has"):
        sql(f"ALTER FLOW t AS {WATERMARKED.format(two)}")


def test_a_session_need_not_be_set_up_for_names(sql: Workshop) -> None:
    """Only the flow's own session takes names; streams without one go on in the user's."""
    sql(f"CREATE STREAMING TABLE t AS {union('a', 'b')}")
    sql("CREATE STREAMING TABLE u AS SELECT k, v FROM STREAM a")
    assert equals_batch(sql, union("a", "b"))
    sql("WAIT FLOW u")
    assert sql.batch("SELECT * FROM u") == sql.batch("SELECT * FROM a")
