"""Two expressions are one only where Spark's analysis says so, and names are found as Spark finds them: flows against batch."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException

from tests.integration.workshop import Workshop
from tests.support import rows

MORE = (
    """(1, named_struct('id', 1, 'k', 'x'), 'a', 'Abc', 1.0, '{"x": 1, "X": 2}', TIMESTAMP '2024-01-01 00:00:00',
        named_struct('ts', TIMESTAMP '2025-01-01 00:00:00')),
       (1, named_struct('id', 2, 'k', 'y'), 'A', 'abc', 2.0, '{"x": 3, "X": 4}', TIMESTAMP '2024-01-02 00:00:00',
        named_struct('ts', TIMESTAMP '2023-01-01 00:00:00')),
       (NULL, NULL, '', NULL, NULL, NULL, NULL, NULL)""",
    """(1, named_struct('id', 1, 'k', 'z'), 'a', 'xA', 3.0, '{"x": 5}', TIMESTAMP '2024-01-03 00:00:00',
        named_struct('ts', TIMESTAMP '2026-01-01 00:00:00')),
       (2, named_struct('id', 1, 'k', 'x'), 'b', 'xa', 4.0, NULL, TIMESTAMP '2020-01-03 00:00:00', NULL)""",
)
QUERIES = [
    "SELECT id, payload.id AS pid, avg(v) AS v FROM {} GROUP BY id, payload.id",
    "SELECT payload.id, count(*) AS n FROM {} GROUP BY payload.id",
    "SELECT src.id, src.payload.id AS pid, count(*) AS n FROM {} AS src GROUP BY id, payload.id",
    "SELECT payload.id AS id, payload.k AS k, sum(v) AS s FROM {} GROUP BY payload.id, payload.k HAVING sum(v) > 1",
    "SELECT k, max(ts) AS a, max(meta.ts) AS b FROM {} GROUP BY k ORDER BY k LIMIT 10",
    "SELECT id, count_if(s RLIKE r'A') AS a, count_if(s RLIKE r'a') AS b FROM {} GROUP BY id ORDER BY id LIMIT 9",
    "SELECT id, max(get_json_object(j, '$.x')) AS a, max(get_json_object(j, '$.X')) AS b FROM {} GROUP BY id ORDER BY a LIMIT 9",
    "SELECT K, count(*) C FROM {} GROUP BY k",
    "SELECT UPPER(K) AS Kk, Count(*) AS n FROM {} GROUP BY upper(k) ORDER BY kK LIMIT 9",
    "SELECT id AS payload_id, upper(k) AS k, count(*) AS n FROM {} GROUP BY id, upper(k)",
    "SELECT payload.k, k AS other, count(*) AS n FROM {} GROUP BY ALL",
    "SELECT DISTINCT payload.id, id AS top FROM {}",
    "SELECT id, floor(log10(count(DISTINCT v) * 1000)) AS l, datediff(max(DISTINCT ts), '2024-01-01') AS d FROM {} GROUP BY id",
    """SELECT * FROM (SELECT id, k, v FROM {}) PIVOT (sum(v) AS s, max(v) AS m FOR k IN ('a' AS x, 'A', ''))""",
    "SELECT k, max_by(v, ts, 2) AS newest, sum(v * (SELECT 3)) AS s, min_by(s, ts, 1) AS first FROM {} GROUP BY k",
    "SELECT payload.id pid, grouping(payload.id) g, sum(v) s FROM {} GROUP BY ROLLUP (payload.id, id)",
    "WITH some AS (SELECT upper(k) AS k, v FROM {} WHERE v > 0) SELECT k, avg(v) AS a, count(*) AS n FROM some GROUP BY k",
]


@pytest.fixture
def source(sql: Workshop) -> Workshop:
    sql(
        "CREATE TABLE src (id INT, payload STRUCT<id: INT, k: STRING>, k STRING, s STRING, v DOUBLE, j STRING, ts TIMESTAMP, "
        "meta STRUCT<ts: TIMESTAMP>) USING delta"
    )
    return sql


@pytest.mark.parametrize("backend", ["rocksdb", "auto"])
def test_flows_equal_batch(source: Workshop, backend: str) -> None:
    source(f"SET `spark.sqlext.state.backend.type` = {backend}")
    queries = QUERIES if backend == "auto" else QUERIES[::4]
    for number, query in enumerate(queries):
        source(f"CREATE STREAMING TABLE t{number} AS {query.format('STREAM src')}")
    for values in MORE:
        source(f"INSERT INTO src VALUES {values}")
        for number, query in enumerate(queries):
            source(f"WAIT FLOW t{number}")
            expected, found = source.spark.sql(query.format("src")), source.spark.table(f"t{number}")
            assert rows(found) == rows(expected), query
            assert found.dtypes == expected.dtypes, query


def test_names_follow_the_sessions_setting(source: Workshop) -> None:
    source("SET spark.sql.caseSensitive = true")
    source("CREATE STREAMING TABLE t AS SELECT T.k, max(t.v) AS m FROM STREAM src AS T JOIN src AS t ON T.k = t.k GROUP BY T.k")
    source(f"INSERT INTO src VALUES {MORE[0]}")
    source("WAIT FLOW t")

    assert source.batch("SELECT * FROM t") == source.batch(
        "SELECT T.k, max(t.v) AS m FROM src AS T JOIN src AS t ON T.k = t.k GROUP BY T.k"
    )
    with pytest.raises(AnalysisException, match="K"):
        source("CREATE STREAMING TABLE t2 AS SELECT K, count(*) AS c FROM STREAM src GROUP BY k")


def test_a_key_that_no_column_carries_is_refused(source: Workshop) -> None:
    with pytest.raises(PySparkException, match="a group is not a single row"):
        source("CREATE STREAMING TABLE t AS SELECT k, explode(collect_list(v)) AS v FROM STREAM src GROUP BY k")
    assert source("SHOW FLOWS") == []


def test_a_column_without_a_name_has_the_users_text(source: Workshop) -> None:
    query = "SELECT k, count(DISTINCT v), count(*), max(DISTINCT s) FROM {} GROUP BY k"
    with pytest.raises(PySparkException, match=r"The column `count\(DISTINCT v\)` cannot be stored"):
        source(f"CREATE STREAMING TABLE t AS {query.format('STREAM src')}")
    source(f"INSERT INTO src VALUES {MORE[0]}")
    properties = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    source(f"CREATE STREAMING TABLE t {properties} AS {query.format('STREAM src')}")
    source("WAIT FLOW t")

    expected = source.spark.sql(query.format("src"))
    assert source.spark.table("t").columns == expected.columns
    assert source.batch("SELECT * FROM t") == rows(expected)
