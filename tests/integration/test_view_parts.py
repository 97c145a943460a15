"""Views over tables of which a refresh reads parts only: those with the keys of changed rows. Here all tables count as large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sqlext.execution.views import near, query, refresh
from sqlext.execution.views.kept import Kept
from sqlext.execution.views.near import Range
from sqlext.spark import delta_tables
from sqlext.spark.plans import Plans, analysed
from tests.integration.test_view_answers import TU, Case, check, rows
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean", "in_parts")

LINES = rows("lines", "o INT, s INT, late BOOLEAN, note STRING", "(1, 1, true, 'a'), (1, 2, false, 'b'), (2, 1, true, NULL)")
ORDERS = rows("orders", "o INT, c STRING, day DATE", "(1, 'x', DATE'2024-01-01'), (2, 'y', DATE'2024-01-02'), (3, 'x', NULL)")
PEOPLE = rows("people", "c STRING, n INT", "('x', 1), ('y', 2), (NULL, 3)")
SHOP = (*LINES, *ORDERS, *PEOPLE)
SHOPPING = (
    "INSERT INTO lines VALUES (3, 1, true, 'c'), (3, 1, true, 'c'), (3, 2, true, 'd'); INSERT INTO orders VALUES (4, NULL, NULL)",
    "DELETE FROM lines WHERE o = 3 AND s = 1; UPDATE orders SET c = 'y' WHERE o = 1; INSERT INTO people VALUES ('y', 2); "
    "UPDATE lines SET late = NOT late WHERE s = 2; INSERT INTO lines VALUES (NULL, 1, true, NULL), (4, 1, false, 'e')",
    "DELETE FROM orders WHERE o = 1; INSERT INTO orders VALUES (NULL, 'x', DATE'2024-01-03'), (1, 'x', DATE'2023-12-31')",
)


def over_shop(query: str) -> Case:
    return Case(SHOP, query, SHOPPING, never_full=True)


CASES: dict[str, Case] = {
    "waiting": over_shop(  # as TPC-H's Q21
        "SELECT p.n, count(*) AS waiting FROM people p, orders o, lines l WHERE p.c = o.c AND o.o = l.o AND l.late "
        "AND EXISTS (SELECT * FROM lines m WHERE m.o = l.o AND m.s <> l.s) "
        "AND NOT EXISTS (SELECT * FROM lines m WHERE m.o = l.o AND m.s <> l.s AND m.late) GROUP BY p.n"
    ),
    "nulls_meet": over_shop("SELECT o.day, l.s, p.n FROM orders o JOIN lines l ON o.o <=> l.o JOIN people p ON p.c <=> o.c"),
    "keys_of_both": over_shop(
        "SELECT a.s, b.n, c.day FROM lines a JOIN people b ON a.s = b.n JOIN orders c ON c.o = a.o AND c.c = b.c"
    ),
    "full_over_unions": over_shop(
        "SELECT a.o, a.k, b.day FROM (SELECT o, s AS k FROM lines UNION ALL SELECT o, 7 FROM orders) a "
        "FULL JOIN orders b ON a.o = b.o"
    ),
    "exploded": over_shop(
        "SELECT o.o, x.word FROM orders o JOIN (SELECT l.o, w.word FROM lines l, LATERAL explode(array(note, 'z')) AS w(word)) x "
        "ON x.o = o.o JOIN people p ON p.c = o.c"
    ),
    "equal_rows": Case(
        (*rows("t", "k INT, x DOUBLE", "(1, 0.0), (1, -0.0), (1, 0.0), (2, double('NaN'))"), *rows("u", "k INT", "(1), (2)")),
        "SELECT u.k, t.x FROM u LEFT JOIN t ON u.k = t.k",
        (
            "DELETE FROM t WHERE k = 2; INSERT INTO t VALUES (1, 0.0), (1, 0.0)",
            "INSERT INTO u VALUES (1); INSERT INTO t VALUES (2, 1)",
        ),
        never_full=True,
    ),
    "decimal_keys": Case(
        (
            *rows("t", "k DECIMAL(20, 2), x INT", "(-1.50, 1), (99999999999999999.99, 2)"),
            *rows("u", "k DECIMAL(20, 2)", "(-1.50)"),
        ),
        "SELECT t.x, u.k FROM t JOIN u ON t.k = u.k LEFT JOIN t AS w ON w.k = u.k",
        ("INSERT INTO u VALUES (99999999999999999.99)", "DELETE FROM t WHERE k < 0; INSERT INTO u VALUES (NULL)"),
        never_full=True,
    ),
}


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "READ_IN_PARTS_BYTES", 0)


@pytest.mark.parametrize("name", list(CASES))
def test_a_view_of_parts_answers_as_its_query(sql: Workshop, name: str) -> None:
    check(sql, CASES[name])


def test_the_old_rows_are_not_read(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new ones and the changes tell them."""
    for statement in TU:
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT u.k, t.x FROM u LEFT JOIN t ON u.k = t.k")
    sql("UPDATE t SET x = x + 1 WHERE k = 1")
    read: list[int] = []
    rows_at = delta_tables.rows_at

    def noted(session: Any, location: str, version: int) -> Any:
        read.append(version)
        return rows_at(session, location, version)

    monkeypatch.setattr(delta_tables, "rows_at", noted)
    assert "changed rows" in sql("REFRESH MATERIALIZED VIEW v")[0][0]
    assert sorted(read) == [1, 2]
    assert sorted(map(str, sql("SELECT * FROM v"))) == sorted(map(str, sql("SELECT u.k, t.x FROM u LEFT JOIN t ON u.k = t.k")))


def test_what_exists_selects_is_not_read(sql: Workshop) -> None:
    """EXISTS (SELECT * ..) asks for rows, whatever their columns hold."""
    for statement in TU:
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k FROM t WHERE EXISTS (SELECT * FROM u WHERE u.k = t.k)")
    sql("UPDATE u SET y = y + 1")
    assert "no change" in sql("REFRESH MATERIALIZED VIEW v")[0][0]
    sql("UPDATE u SET k = 9 WHERE k = 1")
    assert "no change" not in sql("REFRESH MATERIALIZED VIEW v")[0][0]
    assert [row.k for row in sql("SELECT * FROM v")] == [2]


def test_a_query_is_analysed_again_only_where_a_table_is_defined_otherwise(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysed_queries: list[str] = []
    analyse = query.analyse

    def noted(session: Any, text: str, *others: Any) -> Any:
        analysed_queries.append(text)
        return analyse(session, text, *others)

    monkeypatch.setattr(refresh, "analyse", noted)
    for statement in rows("t", "k INT, x INT", "(1, 10)"):
        sql(statement)
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k, sum(x) AS s FROM t GROUP BY k")
    sql("INSERT INTO t VALUES (1, 1)")
    sql("REFRESH MATERIALIZED VIEW v")
    analysed_queries.clear()
    sql("INSERT INTO t VALUES (1, 2)")
    sql("REFRESH MATERIALIZED VIEW v")
    assert analysed_queries == []
    sql("ALTER TABLE t ADD COLUMN y INT")
    sql("INSERT INTO t VALUES (1, 3, 7)")
    sql("REFRESH MATERIALIZED VIEW v")
    assert len(analysed_queries) == 1
    assert [tuple(row) for row in sql("SELECT * FROM v")] == [(1, 16)]


@pytest.fixture
def kept(sql: Workshop) -> Iterator[Kept]:
    with Kept(Plans(sql.spark)) as made:
        yield made


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("(3), (-1), (3)", Range("-1", "3", False)),
        ("(CAST(3 AS BIGINT)), (NULL)", Range("3", "3", True)),
        ("(1.50BD), (-2.25BD)", Range("-2.25", "1.50", False)),
        ("(DATE'2024-02-01'), (DATE'2023-02-01')", Range("2023-02-01", "2024-02-01", False)),
        ("('b'), ('B'), ('')", Range("", "b", False)),
        ("('b' COLLATE UTF8_LCASE)", Range(None, None, False)),
        ("(1.5D)", Range(None, None, False)),
        ("(TIMESTAMP'2024-02-01 00:00:00')", Range(None, None, False)),
    ],
)
def test_the_range_of_values(sql: Workshop, kept: Kept, values: str, expected: Range) -> None:
    found = kept.values(analysed(sql.spark.sql(f"SELECT * FROM VALUES {values} t(k)")))
    assert found.ranges == (expected,)


def test_no_values_have_no_range(sql: Workshop, kept: Kept) -> None:
    assert kept.values(analysed(sql.spark.sql("SELECT 1 AS k WHERE false"))).ranges == (Range(None, None, False),)
