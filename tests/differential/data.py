"""The rows: a table with a column of each kind, null-heavy, whose values and names are easy to mix up; seeded."""

from __future__ import annotations

import random
from dataclasses import dataclass

COLUMNS = {
    "id": "BIGINT",
    "k": "STRING",
    "v": "INT",
    "w": "BIGINT",
    "d": "DECIMAL(10, 2)",
    "wide": "DECIMAL(28, 3)",
    "x": "DOUBLE",
    "f": "FLOAT",
    "s": "STRING",
    "b": "BOOLEAN",
    "dt": "DATE",
    "ts": "TIMESTAMP",
    "ntz": "TIMESTAMP_NTZ",
    "ds": "STRING",
    "j": "STRING",
    "payload": "STRUCT<id: INT, k: STRING, v: DOUBLE, ts: TIMESTAMP, deep: STRUCT<k: STRING, v: INT>>",
    "tags": "ARRAY<STRING>",
    "nums": "ARRAY<INT>",
    "m": "MAP<STRING, INT>",
    "bin": "BINARY",
}
NULL = "NULL"
_KEYS = ["'a'", "'A'", "'b'", "''", "'a '", "'\u00e4'", NULL]
_TEXTS = ["''", "'a'", "'A'", "'Ab'", "'aB'", "'x-y'", "' '", "'it''s'", "'NaN'", "'10'", "'null'", "'a%'", NULL]
_INTS = ["0", "1", "-1", "2", "3", "7", "10", "100", NULL]
_LONGS = ["0L", "1L", "-5L", "12L", "3000000000L", NULL]
_DECIMALS = ["0.00", "1.50", "-2.25", "10.00", "99.99", "1.5", NULL]
_WIDE = ["1234567890123456789012345.678", "-0.001", "9999999999999999999999999.999", "0", NULL]
_DOUBLES = ["DOUBLE('NaN')", "-0.0D", "0.0D", "1.5D", "-2.25D", "4.0D", "1024.5D", "DOUBLE('Infinity')", NULL]
_FLOATS = ["FLOAT('NaN')", "-0.0F", "0.0F", "0.5F", "-8.25F", NULL]
_BOOLEANS = ["true", "false", NULL]
_DATES = ["DATE'2024-02-29'", "DATE'2024-03-31'", "DATE'1969-12-31'", "DATE'2023-10-29'", NULL]
_TIMES = [
    "TIMESTAMP'2024-03-31 00:59:59'",
    "TIMESTAMP'2024-03-31 01:00:00.123456'",
    "TIMESTAMP'2024-03-31 12:00:00'",
    "TIMESTAMP'2023-10-29 01:30:00'",
    "TIMESTAMP'1969-12-31 23:59:59'",
    NULL,
]
# The first is no time in New York, the second is two.
_LOCAL_TIMES = ["TIMESTAMP_NTZ'2024-03-10 02:30:00'", "TIMESTAMP_NTZ'2024-11-03 01:30:00.000001'", NULL]
_DAYS = ["'29.02.2024'", "'01.12.2023'", "'31.03.2024'", NULL]
_JSON = [
    '\'{"order-id": "o1", "x": "low", "X": "UP", "a": [{"b": 2}]}\'',
    '\'{"order-id": "o2", "x": null}\'',
    '\'{"X": "only", "n": 1.50}\'',
    "'broken'",
    "''",
    NULL,
]
_ARRAYS = ["array('a', 'A', NULL)", "array('b')", "CAST(array() AS ARRAY<STRING>)", "array('', 'a', 'a')", NULL]
_NUMBERS = ["array(1, 2, 3)", "array(3, NULL, 1)", "CAST(array() AS ARRAY<INT>)", "array(7)", NULL]
_MAPS = ["map('a', 1, 'A', 2)", "map('b', NULL)", "map('', 0)", "CAST(map() AS MAP<STRING, INT>)", NULL]
_BYTES = ["X'00FF'", "X''", "X'61'", NULL]


@dataclass(frozen=True)
class Commits:
    """What is appended to the source, commit after commit: rows as SQL values, in the order of COLUMNS."""

    rows: tuple[tuple[tuple[str, ...], ...], ...]

    def insert(self, at: int) -> str:
        """The INSERT of one commit."""
        rows = ",\n  ".join(f"({', '.join(row)})" for row in self.rows[at])
        return f"INSERT INTO ev VALUES\n  {rows}"


CREATE = "CREATE TABLE ev ({}) USING delta".format(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))
CREATE_DIM = "CREATE TABLE dim (k STRING, v INT, label STRING) USING delta"
INSERT_DIM = (
    "INSERT INTO dim VALUES ('a', 1, 'first'), ('A', 2, 'capital'), ('', 3, 'empty'), ('b', NULL, NULL), (NULL, 4, 'nothing')"
)


def commits(random_: random.Random, count: int, most_rows: int = 9) -> Commits:
    """Some commits of a few rows each; the keys of early ones come again, and some come late."""
    ids = iter(range(1, 1_000_000))
    sizes = [random_.randint(2, most_rows) for _ in range(count)]
    return Commits(tuple(tuple(_row(random_, next(ids)) for _ in range(size)) for size in sizes))


def _row(random_: random.Random, number: int) -> tuple[str, ...]:
    pick = random_.choice
    if random_.random() < 0.08:  # nothing but nulls
        return (f"{number}L", *(NULL for _ in range(len(COLUMNS) - 1)))
    deep = pick([f"named_struct('k', {pick(_KEYS)}, 'v', {pick(_INTS)})", NULL])
    payload = (
        f"named_struct('id', {pick(_INTS)}, 'k', {pick(_KEYS)}, 'v', {pick(_DOUBLES)}, 'ts', {pick(_TIMES)}, 'deep', {deep})"
    )
    values = {
        "id": f"{number}L",
        "k": pick(_KEYS),
        "v": pick(_INTS),
        "w": pick(_LONGS),
        "d": pick(_DECIMALS),
        "wide": pick(_WIDE),
        "x": pick(_DOUBLES),
        "f": pick(_FLOATS),
        "s": pick(_TEXTS),
        "b": pick(_BOOLEANS),
        "dt": pick(_DATES),
        "ts": pick(_TIMES),
        "ntz": pick(_LOCAL_TIMES),
        "ds": pick(_DAYS),
        "j": pick(_JSON),
        "payload": pick([payload, payload, payload, NULL]),
        "tags": pick(_ARRAYS),
        "nums": pick(_NUMBERS),
        "m": pick(_MAPS),
        "bin": pick(_BYTES),
    }
    return tuple(values[name] for name in COLUMNS)
