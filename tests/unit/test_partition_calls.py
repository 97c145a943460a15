"""Calls of partition operators: which statements have them, and how they reach Spark's grammar."""

from __future__ import annotations

import pytest

from sqlext.sql.partition_calls import partition_calls, spark_form
from sqlext.sql.tokens import is_ours, tokens


def rewritten(text: str) -> str:
    found = tokens(text)
    return spark_form(text, found, partition_calls(found))


OWN = "PARTITION BY '__sqlext_own_partitions'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("map_partition(TABLE(t), 'f')", "map_partition(TABLE(t), 'f')"),
        ("MAP_PARTITION ( TABLE t , 'f' )", "MAP_PARTITION ( TABLE(t) , 'f' )"),
        ("map_partition(TABLE(t) PARTITION BY k, 'f')", "map_partition(TABLE(t) PARTITION BY(k), 'f')"),
        ("map_partition(TABLE a.b.t PARTITION BY k, 'f')", "map_partition(TABLE(a.b.t) PARTITION BY(k), 'f')"),
        ("map_partition(TABLE(t) PARTITION BY (k), 'f')", "map_partition(TABLE(t) PARTITION BY (k), 'f')"),
        ("map_partition(TABLE(t) PARTITION BY (a), (b), 'f')", "map_partition(TABLE(t) PARTITION BY((a), (b)), 'f')"),
        ("map_partition(TABLE(t) DISTRIBUTE BY f(a, b), c, 'f')", "map_partition(TABLE(t) DISTRIBUTE BY(f(a, b), c), 'f')"),
        ("reduce_partition(TABLE(t) PARTITION BY k ORDER BY a, b DESC, 'f')",
         "reduce_partition(TABLE(t) PARTITION BY(k) ORDER BY(a, b DESC), 'f')"),
        ("sort_partition(TABLE(t) ORDER BY v DESC)", f"sort_partition(TABLE(t) {OWN} ORDER BY(v DESC))"),
        ("sort_partition(TABLE(t) SORT BY a, b NULLS LAST)", f"sort_partition(TABLE(t) {OWN} SORT BY(a, b NULLS LAST))"),
        ("sort_partition(TABLE(t) PARTITION BY k, l ORDER BY v)", "sort_partition(TABLE(t) PARTITION BY(k, l) ORDER BY(v))"),
        ("sort_partition(TABLE t WITH SINGLE PARTITION SORT BY v)", "sort_partition(TABLE(t) WITH SINGLE PARTITION SORT BY(v))"),
        ("sort_partition(TABLE(t)\nORDER BY\nv)", f"sort_partition(TABLE(t)\n{OWN} ORDER BY(\nv))"),
        (
            "sort_partition(TABLE(SELECT * FROM map_partition(TABLE(t) PARTITION BY k, 'f') ORDER BY x) ORDER BY v)",
            "sort_partition(TABLE(SELECT * FROM map_partition(TABLE(t) PARTITION BY(k), 'f') ORDER BY x) "
            f"{OWN} ORDER BY(v))",
        ),
        ("cogroup(TABLE(a) PARTITION BY k, TABLE b PARTITION BY l, m, 'f')",
         "cogroup(TABLE(a) PARTITION BY(k), TABLE(b) PARTITION BY(l, m), 'f')"),
        ("cogroup(TABLE(a) PARTITION BY f(x, y), k, TABLE(SELECT 1 FROM cogroup(TABLE a PARTITION BY l, TABLE b, g)), f)",
         "cogroup(TABLE(a) PARTITION BY(f(x, y), k), TABLE(SELECT 1 FROM cogroup(TABLE(a) PARTITION BY(l), TABLE(b), g)), f)"),
        ("map_partition(TABLE(t) PARTITION BY k, table, 'f')", "map_partition(TABLE(t) PARTITION BY(k, table), 'f')"),
        ("map_partition(TABLE(t) PARTITION BY", "map_partition(TABLE(t) PARTITION BY"),  # Spark says what is missing
        ("map_partition(TABLE(t) PARTITION BY, 'f')", "map_partition(TABLE(t) PARTITION BY, 'f')"),
    ],
)  # fmt: skip
def test_calls_in_spark_s_form(text: str, expected: str) -> None:
    assert rewritten(f"SELECT 1 FROM {text}") == f"SELECT 1 FROM {expected}"


def test_several_calls_and_what_stands_around_them() -> None:
    text = (
        "SELECT 'map_partition(TABLE(t) ORDER BY v)' FROM sort_partition(TABLE(t) ORDER BY v) "
        "JOIN sort_partition(TABLE u ORDER BY w)"
    )
    found = tokens(text)
    assert [(call.operator, found[call.tables[0].table_end].text) for call in partition_calls(found)] == [
        ("sort_partition", ")"),
        ("sort_partition", "u"),
    ]
    assert rewritten(text) == (
        f"SELECT 'map_partition(TABLE(t) ORDER BY v)' FROM sort_partition(TABLE(t) {OWN} ORDER BY(v)) "
        f"JOIN sort_partition(TABLE(u) {OWN} ORDER BY(w))"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM map_partition(TABLE(t), 'f')", True),
        ("/* dbt */ create table x as select * from Sort_Partition ( table ( t ) order by v )", True),
        ("EXPLAIN EXTENDED SELECT * FROM aggregate_partition(TABLE t, 'f')", True),
        ("INSERT INTO x SELECT * FROM reduce_partition(TABLE(t), 'f')", True),
        ("SELECT * FROM cogroup(TABLE a PARTITION BY k, TABLE b PARTITION BY k, 'f')", True),
        ("SELECT * FROM process_keyed(TABLE(t) PARTITION BY k, 'f')", True),
        ("SHOW PARTITION FUNCTIONS", True),
        ("SHOW PARTITIONS t", False),
        ("SELECT map_partition(x, 'f') FROM t", False),  # a function of the user's own
        ("SELECT 'map_partition(TABLE(t))'", False),
        ("SELECT `map_partition`(TABLE(t))", False),
        ("SELECT map_partition FROM t", False),
        ("BEGIN SELECT * FROM map_partition(TABLE(t), 'f'); END", False),
    ],
)
def test_which_statements_are_ours(text: str, expected: bool) -> None:
    assert is_ours(text) == expected
