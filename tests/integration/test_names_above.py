"""Names in ORDER BY, HAVING and correlated subqueries of an aggregate over a stream: they mean what they mean in batch."""

from __future__ import annotations

import pytest

from tests.integration.workshop import Workshop
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean", "unhurried")

QUERIES = {
    "shadowed": "SELECT -v AS v, count(*) AS n FROM {} GROUP BY -v ORDER BY -v LIMIT 2",
    "key_first": "SELECT v AS x, -v AS v, count(*) AS n FROM {} GROUP BY v HAVING v > 1",
    "key_first_above": "SELECT -v AS v, count(*) AS n FROM {} GROUP BY v HAVING v > 1 ORDER BY v LIMIT 2",
    "aggregate_like_key": "SELECT w AS g, sum(v) AS w FROM {} GROUP BY w HAVING w > 3",
    "aggregate_like_hidden_key": "SELECT sum(v) AS w, max(v) AS m FROM {} GROUP BY w HAVING w > 3",
    "names_shifted": "SELECT v AS x, w AS v, count(*) AS n FROM {} GROUP BY v, w HAVING v = 2",
    "alias_alone": "SELECT lower(k) AS z, count(*) AS n FROM {} GROUP BY z HAVING z = 'a'",
    "field": "SELECT k, max(struct(v, w)) AS s FROM {} GROUP BY k HAVING s.v > 2",
    "field_above": "SELECT k, max(struct(v, w)) AS s FROM {} GROUP BY k HAVING s.v > 2 ORDER BY k LIMIT 2",
    "all_by_date": "SELECT day, count(*) AS n FROM {} GROUP BY ALL HAVING day < current_date()",
    "correlated": "SELECT k, min(v) AS m FROM {} GROUP BY k HAVING (SELECT max(x) FROM d WHERE id = k) < min(v) ORDER BY m",
    "own_first": "SELECT k, min(v) AS m FROM {} GROUP BY k HAVING (SELECT max(x) FROM e WHERE k = 'b') < min(v) ORDER BY m",
    "row": "SELECT k, to_json((k, count(*))) AS j FROM {} GROUP BY k ORDER BY j LIMIT 3",
    "row_in_lambda": "SELECT k, to_json(transform(sort_array(collect_list(v)), x -> (x, k))) AS j FROM {} GROUP BY k "
    "ORDER BY k LIMIT 2",
    "row_in_subquery": "SELECT k, min(v) AS m FROM {} AS s GROUP BY k "
    "HAVING (SELECT max(x) FROM d WHERE to_json(struct(id AS k)) = to_json(struct(s.k))) < 5 ORDER BY m LIMIT 3",
    "qualified": "SELECT k, builtin.count(v) AS n, system.builtin.sum(v) + 1 AS s FROM {} GROUP BY k ORDER BY n, k LIMIT 2",
}
ARRIVALS = (
    "('a', 1, 2, DATE '2024-01-01'), ('b', 2, 9, DATE '2999-01-01'), (NULL, 4, 4, NULL)",
    "('a', 3, 1, DATE '2024-01-01'), ('c', -7, 1, DATE '2024-01-02'), ('b', 2, 3, DATE '2999-01-01')",
)


def test_flows_equal_batch(sql: Workshop) -> None:
    sql("CREATE TABLE t (k STRING, v INT, w INT, day DATE) USING delta")
    sql("CREATE TABLE d (id STRING, x INT) USING delta")
    sql("CREATE TABLE e (k STRING, x INT) USING delta")
    sql("INSERT INTO d VALUES ('a', 0), ('b', 9), ('b', 1), ('c', -9)")
    sql("INSERT INTO e VALUES ('b', 1), ('a', 5)")

    def create(table: str) -> None:
        sql(f"CREATE STREAMING TABLE {table} AS {QUERIES[table].format('STREAM t')}")

    def equals_batch(table: str) -> None:
        sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT * FROM {table}") == sql.batch(QUERIES[table].format("t")), table

    side_by_side(create, QUERIES)
    for values in ARRIVALS:
        sql(f"INSERT INTO t VALUES {values}")
        side_by_side(equals_batch, QUERIES)
