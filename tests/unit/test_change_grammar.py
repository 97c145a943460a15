"""AUTO CDC: every clause, the columns of the query that it stands for, and for each mistake what is said and where."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sqlext.errors import Position, SqlextError
from sqlext.plan.change_capture import ChangeCapture, ColumnChoice
from sqlext.planner.change_capture import SourceColumn, query_of
from sqlext.sql.grammar import parse
from sqlext.sql.statements import AutoCdc, CreateStreamingTable, DeclareStreamingTable, Explain, Insert
from sqlext.sql.tokens import is_ours

FLOW = "CREATE FLOW f AS AUTO CDC INTO customers FROM STREAM cdc KEYS (id) {} SEQUENCE BY lsn"
TABLE = "CREATE OR REFRESH STREAMING TABLE s.customers FLOW AUTO CDC FROM STREAM(cdc) KEYS (id) SEQUENCE BY lsn {}"
SOURCE = [SourceColumn(each) for each in ("op", "lsn", "id", "name", "city")]


def captured(text: str) -> AutoCdc:
    assert is_ours(text)
    statement = parse(text)
    assert isinstance(statement, AutoCdc)
    return statement


def names(choice: ColumnChoice) -> tuple[list[str], bool]:
    return [each.text for each in choice.names], choice.is_except


def columns_of(capture: ChangeCapture, listed: Sequence[str] = ()) -> list[str]:
    """The columns of the query, in order."""
    head = query_of(capture, SOURCE, listed).partition(" FROM ")[0].removeprefix("SELECT ")
    return [item.rpartition(" AS ")[2].removeprefix("r.").strip("`") for item in head.split(", ")]


def test_all_clauses_are_read_in_any_order() -> None:
    capture = captured(
        "CREATE FLOW IF NOT EXISTS a.f COMMENT 'c' AS AUTO CDC INTO s.t FROM STREAM read_kafka(subscribe => 'a') AS k "
        "KEYS (id, `a key`) TRACK HISTORY ON * EXCEPT (city) COLUMNS * EXCEPT (op, lsn) SEQUENCE BY struct(lsn, at) "
        "IGNORE NULL UPDATES APPLY AS DELETE WHEN op = 'D' AND (x = 'SEQUENCE BY' OR columns > 1) STORED AS SCD TYPE 2;"
    ).capture
    assert [each.text for each in capture.keys] == ["id", "a key"]
    assert capture.source.text == "FROM STREAM read_kafka(subscribe => 'a') AS k"
    assert capture.sequence.text == "struct(lsn, at)"
    assert capture.delete_when is not None
    assert capture.delete_when.text == "op = 'D' AND (x = 'SEQUENCE BY' OR columns > 1)"
    assert names(capture.columns) == (["op", "lsn"], True)
    assert names(capture.tracked) == (["city"], True)
    assert capture.ignores_nulls
    assert capture.keeps_history
    assert capture.truncate_when is None


def test_a_flow_and_a_table_hold_it() -> None:
    flow = captured(FLOW.format("APPLY AS TRUNCATE WHEN op = 'T'")).into
    assert isinstance(flow, Insert)
    assert (flow.flow, flow.target, flow.by_name) == (("f",), ("customers",), True)
    table = captured(TABLE.format("STORED AS SCD TYPE 1")).into
    assert isinstance(table, CreateStreamingTable)
    assert (table.name, table.refresh) == (("s", "customers"), True)
    explained = parse("EXPLAIN " + TABLE.format(""))
    assert isinstance(explained, Explain)
    assert isinstance(explained.statement, AutoCdc)


def test_the_rows_of_the_source_keep_their_place() -> None:
    text = (
        "EXPLAIN CREATE FLOW f\nAS AUTO CDC INTO t\nFROM STREAM cdc WITH ('maxFilesPerTrigger' = '1')\nKEYS (id) SEQUENCE BY lsn"
    )
    explained = parse(text)
    assert isinstance(explained, Explain)
    assert isinstance(explained.statement, AutoCdc)
    source = explained.statement.into.query.source
    assert source.split() == "SELECT * FROM STREAM cdc WITH ('maxFilesPerTrigger' = '1')".split()
    assert source.index("FROM") == text.index("FROM")


def test_a_table_without_a_query_is_declared() -> None:
    statement = parse("CREATE OR REFRESH STREAMING TABLE t (id BIGINT, name STRING) CLUSTER BY (id)")
    assert isinstance(statement, DeclareStreamingTable)
    assert [column.name for column in statement.definition.columns] == ["id", "name"]
    assert statement.definition.clauses == ("CLUSTER BY (id)",)
    assert isinstance(parse("CREATE STREAMING TABLE t;"), DeclareStreamingTable)


@pytest.mark.parametrize(
    ("clauses", "columns"),
    [
        ("", ["op", "lsn", "id", "name", "city"]),
        ("COLUMNS * EXCEPT (op, LSN)", ["id", "name", "city"]),
        ("COLUMNS (city)", ["id", "city"]),
        ("COLUMNS city, name IGNORE NULL UPDATES", ["id", "name", "city"]),
        ("COLUMNS (name) APPLY AS TRUNCATE WHEN op = 'T'", ["id", "name"]),
        ("COLUMNS (name) STORED AS SCD TYPE 2", ["id", "name", "__START_AT", "__END_AT"]),
    ],
)
def test_the_table_has_the_columns_that_are_chosen(clauses: str, columns: list[str]) -> None:
    assert columns_of(captured(TABLE.format(clauses)).capture) == columns


def test_a_column_list_chooses_and_orders() -> None:
    capture = captured(TABLE.format("")).capture
    assert columns_of(capture, ["city", "ID"]) == ["city", "id"]


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        (FLOW.replace("STREAM cdc", "cdc").format(""), "AUTO CDC reads a stream of changes: expected STREAM and a table", "cdc"),
        ("CREATE FLOW f AS AUTO CDC INTO t FROM STREAM cdc", "Expected KEYS", ""),
        ("CREATE FLOW f AS AUTO CDC INTO t FROM STREAM cdc KEYS (id)", "AUTO CDC needs SEQUENCE BY", ""),
        (FLOW.format("APPLY AS DELET WHEN op = 'D'"), "Did you mean `APPLY AS DELETE WHEN`?", "APPLY"),
        (FLOW.format("APPLY AS DELETE WHEN"), "Expected an expression", "SEQUENCE"),
        (FLOW.format("SEQUENCE BY at"), "The clause SEQUENCE BY is given twice.", "SEQUENCE"),
        (FLOW.format("STORED AS SCD TYPE 3"), "Expected 1, the newest row of each key, or 2, its history", "3"),
        (FLOW.format("TRACK HISTORY ON name"), "TRACK HISTORY ON needs STORED AS SCD TYPE 2", "AUTO CDC"),
        (FLOW.format("APPLY AS TRUNCATE WHEN op = 'T' STORED AS SCD TYPE 2"), "which SCD TYPE 2 does not support", "op = 'T'"),
        (FLOW.format("COLUMNS * EXCEPT ()"), "Expected a name", ")"),
        ("CREATE STREAMING TABLE t AS", "Expected a query", ""),
        ("CREATE STREAMING TABLE t FLOW AUTO CDC INTO t FROM STREAM s KEYS (id) SEQUENCE BY a", "Expected FROM STREAM", "INTO"),
    ],
)
def test_mistakes_are_named_at_their_place(text: str, message: str, place: str) -> None:
    with pytest.raises(SqlextError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert caught.value.position is not None
    start = caught.value.position.start
    assert start == len(text) if not place else text[start : caught.value.position.stop] == place


@pytest.mark.parametrize(
    ("clauses", "message", "place"),
    [
        ("COLUMNS (nme)", "The source has no column `nme`; it has op, lsn, id, name, city. Did you mean `name`?", "nme"),
        ("COLUMNS * EXCEPT (id)", "`id` is a key, so the table must have it.", "id"),
        ("STORED AS SCD TYPE 2 TRACK HISTORY ON nothing", "The source has no column `nothing`", "nothing"),
        ("STORED AS SCD TYPE 2 TRACK HISTORY ON (name, ID)", "names `ID`, whose changes begin no version: it is a key", "ID"),
        (
            "COLUMNS * EXCEPT (op, lsn, city) STORED AS SCD TYPE 2 TRACK HISTORY ON city",
            "names `city`, whose changes begin no version: it is a key, or not in the table. Beside its keys, it has name.",
            "city",
        ),
    ],
)
def test_columns_that_are_not_there_are_named_at_their_place(clauses: str, message: str, place: str) -> None:
    text = TABLE.format(clauses)
    with pytest.raises(SqlextError) as caught:
        query_of(captured(text).capture, SOURCE)
    assert message in str(caught.value)
    assert caught.value.position == Position.of(text, text.rindex(place), text.rindex(place) + len(place))


def test_a_column_list_must_fit() -> None:
    capture = captured(TABLE.format("STORED AS SCD TYPE 2")).capture
    with pytest.raises(
        SqlextError, match="The table has a column `nme`, but AUTO CDC brings op, lsn, id, name, city, __start_at"
    ):
        query_of(capture, SOURCE, ["id", "nme"])
    with pytest.raises(SqlextError, match="The column list lacks `__start_at`, which AUTO CDC writes"):
        query_of(capture, SOURCE, ["id", "name"])


def test_history_is_tracked_by_columns_of_a_column_list() -> None:
    tracked = "STORED AS SCD TYPE 2 TRACK HISTORY ON {}"
    with pytest.raises(SqlextError, match="names `city`, whose changes begin no version") as caught:
        query_of(captured(TABLE.format(tracked.format("(Name, city)"))).capture, SOURCE, ["id", "name", "__start_at", "__end_at"])
    assert caught.value.position is not None
    for columns in ("Name", "* EXCEPT (city, id)"):
        capture = captured(TABLE.format(tracked.format(columns))).capture
        assert "struct(`name`)" in query_of(capture, SOURCE, ["id", "name", "__start_at", "__end_at"])


def test_columns_without_an_order_are_refused() -> None:
    capture = captured(TABLE.format("")).capture
    with pytest.raises(SqlextError, match=r"`tags` holds maps .* COLUMNS \* EXCEPT \(tags\)"):
        query_of(capture, [*SOURCE, SourceColumn("tags", has_order=False)])
    with pytest.raises(SqlextError, match="`__change` is a name of AUTO CDC's own"):
        query_of(capture, [*SOURCE, SourceColumn("__change")])
