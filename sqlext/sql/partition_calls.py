"""Calls of the partition operators in SQL: found by tokens, and rewritten so that Spark's grammar accepts them.

Spark's own form of a table argument is `TABLE(t) PARTITION BY (k) ORDER BY (v DESC), 'fn'`. Ours allows the brackets to be left
out, and PARTITION BY before ORDER BY. Insertions replace blanks where possible, so that positions in messages stay right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlext.functions.partition import OPERATORS
from sqlext.sql.statements import PartitionQuery
from sqlext.sql.tokens import Token, is_stream_relation

OWN_PARTITIONS = "__sqlext_own_partitions"
"""A PARTITION BY this string keeps the partitions as they are; Spark's grammar requires a PARTITION BY before ORDER BY."""


@dataclass(frozen=True)
class TableOfCall:
    """A table argument of a call, as indices of tokens.

    Attributes:
        start: the index of its word TABLE.
        table_end: the index of the bracket that closes `TABLE(..)`, or of the last word of `TABLE t`.
        stop: the index of the comma or bracket after its clauses.
    """

    start: int
    table_end: int
    stop: int


@dataclass(frozen=True)
class PartitionCall:
    """A call, as indices of tokens.

    Attributes:
        operator: the operator's name in lower case.
        start: the index of the operator's name.
        tables: the table arguments; only cogroup has two.
        end: the index of the bracket that closes the call.
    """

    operator: str
    start: int
    tables: tuple[TableOfCall, ...]
    end: int


def partition_calls(found: Sequence[Token]) -> list[PartitionCall]:
    """Return all calls of a statement, nested ones included, in the order of their first tokens."""
    calls = []
    for at in range(len(found) - 3):
        word = found[at].text.lower()
        is_call = word in OPERATORS and found[at].kind == "word" and found[at + 1].text == "("
        if is_call and found[at + 2].upper == "TABLE" and (end := _closing(found, at + 1)) is not None:
            calls.append(PartitionCall(word, at, tuple(_tables(found, word, at + 2, end)), end))
    return calls


def _tables(found: Sequence[Token], operator: str, start: int, end: int) -> Iterator[TableOfCall]:
    """Yield the table arguments of a call.

    Args:
        start: the index of the first TABLE.
        end: the index of the bracket that closes the call.
    """
    while True:
        table_end = _end_of_table(found, start, end)
        commas = _commas(found, table_end + 1, end)
        following = next((at for at in commas if found[at + 1].upper == "TABLE" and found[at + 2].text not in (",", ")")), None)
        if following is None:
            has_function = operator != "sort_partition" and commas
            yield TableOfCall(start, table_end, commas[-1] if has_function else end)
            return
        yield TableOfCall(start, table_end, following)
        start = following + 1


def partition_query(text: str, found: Sequence[Token], calls: Sequence[PartitionCall]) -> PartitionQuery:
    """Return a Spark statement with calls, as a value."""
    written = tuple((call.operator, " ".join(text[found[call.start].start : found[call.end].stop].split())) for call in calls)
    return PartitionQuery(spark_form(text, found, calls), written, found[0].upper == "EXPLAIN")


def spark_form(text: str, found: Sequence[Token], calls: Sequence[PartitionCall]) -> str:
    """Return the statement with its calls in Spark's own form."""
    edits = [edit for call in calls for table in call.tables for edit in _edits(found, table)]
    for offset, inserted in sorted(edits, reverse=True):
        is_blank = text[offset : offset + 1] == " " and inserted == "("
        text = text[:offset] + inserted + text[offset + is_blank :]
    return text


def _edits(found: Sequence[Token], table: TableOfCall) -> Iterator[tuple[int, str]]:
    """Yield the offset and the text of each insertion."""
    if found[table.start + 1].text != "(":  # TABLE t
        yield from _bracketed(found, table.start + 1, table.table_end + 1)
    elif is_stream_relation(list(found), table.start + 2):  # TABLE(STREAM t ..)
        yield found[table.start + 2].start, "SELECT * FROM "
    clauses = dict(_clauses(found, table))
    order, partition = clauses.get("ORDER"), clauses.get("PARTITION")
    if partition is not None:
        yield from _bracketed(found, partition + 2, order if order is not None else table.stop)
    elif order is not None and "WITH" not in clauses:
        yield found[order].start, f"PARTITION BY '{OWN_PARTITIONS}' "
    if order is not None:
        yield from _bracketed(found, order + 2, table.stop)


def _bracketed(found: Sequence[Token], first: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield the insertions of brackets around the tokens from `first` up to, not including, `end`, if there are none yet."""
    if first < end and not (found[first].text == "(" and _closing(found, first) == end - 1):
        yield found[first - 1].stop, "("
        yield found[end - 1].stop, ")"


def _clauses(found: Sequence[Token], table: TableOfCall) -> Iterator[tuple[str, int]]:
    """Yield the first word of each clause after the table, and its index."""
    depth = 0
    for at in range(table.table_end + 1, table.stop):
        depth += (found[at].text == "(") - (found[at].text == ")")
        word, following = found[at].upper, found[at + 1].upper
        if depth == 0 and word in ("PARTITION", "DISTRIBUTE", "ORDER", "SORT") and following == "BY":
            yield {"DISTRIBUTE": "PARTITION", "SORT": "ORDER"}.get(word, word), at
        elif depth == 0 and word == "WITH" and following == "SINGLE":
            yield word, at


def _commas(found: Sequence[Token], start: int, end: int) -> list[int]:
    """Return the indices from `start` up to, not including, `end` of the commas outside of brackets.

    The last one is before the function's name.
    """
    depth, commas = 0, []
    for at in range(start, end):
        depth += (found[at].text == "(") - (found[at].text == ")")
        if depth == 0 and found[at].text == ",":
            commas.append(at)
    return commas


def _closing(found: Sequence[Token], opening: int) -> int | None:
    depth = 0
    for at in range(opening, len(found)):
        depth += (found[at].text == "(") - (found[at].text == ")")
        if depth == 0:
            return at
    return None


def _end_of_table(found: Sequence[Token], table: int, end: int) -> int:
    if found[table + 1].text == "(":
        return _closing(found, table + 1) or end
    at = table + 1  # TABLE t, TABLE a.b.t
    while found[at + 1].text == "." and at + 2 < end:
        at += 2
    return at
