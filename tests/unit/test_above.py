r"""Splitting a query into its streaming aggregates and what is above them, on groups of SQL from `tests/fixtures/above/*.sql`.

A group is the query, the query of each maintained aggregate, and the query above; a statement ends with a semicolon at the
end of a line, a group with an empty line. A group of one statement has nothing above. Lines that start with `--` are titles.
Every group also runs in DuckDB over the same rows, once in one step and once in two, unless its title says that it cannot.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import Key
from sqlext.planner.above import split
from sqlext.sql.dialect import parse_query, to_sql

FIXTURES = Path(__file__).parents[1] / "fixtures" / "above"
NOT_IN_DUCKDB = "(not in DuckDB)"


@dataclass(frozen=True)
class Group:
    """One group of a fixture file; `line` is the 1-based line of `query`, `above` is empty when nothing is above."""

    file: str
    line: int
    title: str
    query: str
    aggregates: tuple[str, ...]
    above: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def read(path: Path) -> Iterator[Group]:
    """The groups of a file; ValueError when a statement has no end."""
    title, start, lines = "", 0, list[str]()
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        if line.startswith("--"):
            title = line
        elif line.strip():
            start = start if lines else number
            lines.append(line)
        elif lines:
            if any(not each.endswith(";") for each in lines):
                raise ValueError(f"{path.name}, line {start}: a statement has no end")
            query, *rest = (each.removesuffix(";") for each in lines)
            yield Group(path.stem, start, title, query, tuple(rest[:-1]), rest[-1] if rest else "")
            lines = []


GROUPS = [group for path in sorted(FIXTURES.glob("*.sql")) for group in read(path)]


def parts(query: str) -> tuple[list[str], str]:
    """The texts of the maintained aggregates, and of what is above."""
    found = split(parse_query(query), query)
    return ([to_sql(each.select, query) for each in found.aggregates], to_sql(found.outer, query)) if found else ([], "")


def test_there_are_groups_of_every_shape() -> None:
    count = Counter(group.file for group in GROUPS)
    assert set(count) == {"distinct", "keys", "names", "set_operations", "subqueries", "subtotals", "top", "windows"}
    assert min(count.values()) >= 4
    assert sum(not group.above for group in GROUPS) >= 5


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_a_query_is_split(group: Group) -> None:
    assert parts(group.query) == (list(group.aggregates), group.above)


@pytest.mark.parametrize("group", [group for group in GROUPS if group.above], ids=str)
def test_what_is_above_reads_no_stream_and_a_maintained_aggregate_has_nothing_above(group: Group) -> None:
    assert "STREAM" not in group.above
    for aggregate in group.aggregates:
        if group.file != "subtotals":  # there the columns do not tell that grouping_id() stands among them
            assert parts(aggregate) == ([], "")


# In one step and in two, over the same rows

TABLES = "t (k VARCHAR, j INT, v INT, w INT), u (k VARCHAR, j INT, v INT, w INT), d (k VARCHAR, x INT, name VARCHAR)"


@functools.cache
def database(seed: int, rows: int) -> duckdb.DuckDBPyConnection:
    """The fixtures' tables with random rows: few values, and nulls among them."""
    pick, db = random.Random(seed), duckdb.connect()
    for name, columns in re.findall(r"(\w) (\(.+?\))", TABLES):
        db.execute(f"CREATE TABLE {name} {columns}")
        for _ in range(rows):
            values = [
                pick.choice(["a", "A", "b", "c", None]) if "VARCHAR" in c else pick.choice([*range(6), None])
                for c in columns.split(",")
            ]
            db.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)
    return db


def for_duckdb(sql: str) -> str:
    """A query of the fixtures as DuckDB writes it; `grouping_id()` has no short form there."""
    tree = sqlglot.parse_one(re.sub(r"\bSTREAM ", "", sql), read="databricks")
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name == "grouping_id" and not call.expressions and isinstance(select := call.parent_select, exp.Select):
            keys = [item.this for item in select.expressions if item.alias.startswith("__sqlext_k")]
            call.replace(exp.Anonymous(this="grouping_id", expressions=[key.copy() for key in keys]))
    return tree.sql("duckdb")


def result(db: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[Any], list[str]]:
    cursor = db.execute(for_duckdb(sql))
    names = [column[0].lower() for column in cursor.description or []]
    return names, sorted(map(repr, cursor.fetchall()))


@pytest.mark.parametrize(("seed", "rows"), [(1, 40), (2, 12), (3, 3), (4, 0)])
@pytest.mark.parametrize("group", [group for group in GROUPS if group.above and NOT_IN_DUCKDB not in group.title], ids=str)
def test_two_steps_give_the_rows_of_one(group: Group, seed: int, rows: int) -> None:
    db = database(seed, rows)
    expected = result(db, group.query)
    for number, aggregate in enumerate(group.aggregates, 1):
        db.execute(f"CREATE OR REPLACE TABLE __sqlext_aggregate_{number} AS {for_duckdb(aggregate)}")
        _each_row_has_a_key_of_its_own(db, number)
    names, found = result(db, group.above)
    assert found == expected[1]
    assert [n for n in names if n.isidentifier()] == [n for n in expected[0] if n.isidentifier() and n != "count_star()"]


def _each_row_has_a_key_of_its_own(db: duckdb.DuckDBPyConnection, number: int) -> None:
    columns = [row[0] for row in db.execute(f"DESCRIBE __sqlext_aggregate_{number}").fetchall()]
    keys = [column for column in columns if not column.startswith("__sqlext_a")]
    rows = db.execute(f"SELECT {', '.join([*keys, '1'])} FROM __sqlext_aggregate_{number}").fetchall()
    assert len(rows) == len(set(rows))


# The key of a maintained aggregate


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY k LIMIT 1", Key(("__sqlext_k1",))),
        ("SELECT count(*) AS n FROM STREAM t GROUP BY a, b, A", Key(("__sqlext_k1", "__sqlext_k2"))),
        ("SELECT count(*) AS n FROM STREAM t LIMIT 1", Key()),
        ("SELECT a, count(*) AS n FROM STREAM t GROUP BY a, 'x' LIMIT 1", Key(("__sqlext_k1",))),
        ("SELECT a, b FROM STREAM t GROUP BY ROLLUP (a, b)", Key(("__sqlext_k1", "__sqlext_k2", "__sqlext_grouping"))),
    ],
)
def test_the_key_is_the_grouping_expressions(query: str, key: Key) -> None:
    found = split(parse_query(query), query)
    assert found is not None
    assert [aggregate.key for aggregate in found.aggregates] == [key]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT K, t.B, count(*) AS n FROM STREAM t GROUP BY GROUPING SETS ((b, k), ())", ["k", "b", "n"]),
        ("SELECT K, count(*) AS n FROM STREAM t GROUP BY k LIMIT 1", ["K", "n"]),
        ("SELECT K AS K, count(*) AS n FROM STREAM t GROUP BY ROLLUP (k)", ["K", "n"]),
    ],
)
def test_with_subtotals_a_column_is_named_as_in_group_by(query: str, names: list[str]) -> None:
    found = split(parse_query(query), query)
    assert found is not None
    assert [item.alias_or_name for item in found.outer.selects] == names


def test_an_aggregate_of_a_lambdas_parameter_is_refused() -> None:
    query = "SELECT transform(xs, v -> sum(v)) AS s FROM STREAM t GROUP BY xs LIMIT 3"
    with pytest.raises(UnsupportedError, match=r"`SUM\(v\)` aggregates a parameter of the lambda around it"):
        parts(query)


def test_the_tree_that_was_given_stays_as_it_is() -> None:
    query = "SELECT k, count(*) AS n FROM STREAM t GROUP BY k LIMIT 1"
    tree = parse_query(query)
    split(tree, query)
    assert tree == parse_query(query)


@pytest.mark.parametrize("group_by", ["a, ROLLUP (a)", "GROUPING SETS ((a), (b), (a))", "CUBE (a, a)", "a, CUBE (b), ROLLUP (b)"])
def test_a_grouping_set_that_stands_twice_is_refused(group_by: str) -> None:
    query = f"SELECT a, b, count(*) AS n FROM STREAM t GROUP BY {group_by}"
    with pytest.raises(UnsupportedError, match="A grouping set is given twice here"):
        split(parse_query(query), query)


@pytest.mark.parametrize("group_by", ["a, ROLLUP (b)", "ROLLUP (a, b)", "ROLLUP ((a, b), c)", "CUBE (a, b), c", "a, b WITH CUBE"])
def test_grouping_sets_that_differ_are_none_twice(group_by: str) -> None:
    query = f"SELECT a, b, count(*) AS n FROM STREAM t GROUP BY {group_by}"
    assert split(parse_query(query), query) is not None


def test_a_fixture_file_with_an_odd_end_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.sql").write_text("-- title\nSELECT 1;\nSELECT 2\n")
    with pytest.raises(ValueError, match=r"x\.sql, line 2: a statement has no end"):
        list(read(tmp_path / "x.sql"))


# WITH queries


def test_subqueries_above_an_aggregate_keep_its_with_queries() -> None:
    _, above = parts(
        "WITH w AS (SELECT * FROM x) SELECT k, count(*) AS n FROM STREAM s GROUP BY k HAVING k IN (SELECT k FROM w) LIMIT 2"
    )
    assert above.startswith("WITH w AS (SELECT * FROM x) SELECT ")


def test_a_with_query_below_an_aggregate_may_have_the_name_of_what_it_reads() -> None:
    aggregates, above = parts("WITH s AS (SELECT * FROM STREAM s WHERE v > 1) SELECT k, count(*) AS n FROM s GROUP BY k LIMIT 2")
    assert aggregates[0].startswith("WITH s AS (SELECT * FROM STREAM s WHERE v > 1) SELECT ")
    assert "WITH" not in above


def test_the_names_of_hidden_with_queries_stay() -> None:
    hidden = "WITH a AS (SELECT * FROM x), b AS (SELECT * FROM a)"
    query = "SELECT k, count(*) AS n FROM STREAM s JOIN b USING (k) GROUP BY k"
    aggregates, _ = parts(f"{hidden} SELECT * FROM (WITH a AS (SELECT * FROM y) {query}) LIMIT 2")
    assert aggregates[0].startswith(f"{hidden} SELECT ")


def test_two_with_queries_of_one_name_below_one_aggregate_are_refused() -> None:
    own = "WITH b AS (SELECT * FROM a), a AS (SELECT * FROM y)"
    query = "SELECT k, count(*) AS n FROM STREAM s JOIN b USING (k) JOIN a USING (k) GROUP BY k"
    with pytest.raises(UnsupportedError, match="Two WITH queries named `a`"):
        parts(f"WITH a AS (SELECT * FROM x) SELECT * FROM ({own} {query}) LIMIT 2")
