"""Three source tables of materialized views and what is done to them: seeded rows and DML, as SQL that tells the whole story.

The tables are null-heavy, have `''`, NaN, Infinity, -0.0 and rows that are there twice; numbers are multiples of 0.25, so that
sums are exact in any order. Rows are made from `range` by hashes of their numbers: a statement is short, and the same each time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

NULL = "NULL"
_REGIONS = ("'n'", "'s'", "'e'", "'w'", "''", "'N'", NULL)
_NOTES = ("'x'", "'y'", "'it''s'", "''", NULL)
_DOUBLES = ("0.25D", "1.5D", "-2.25D", "4.0D", "1024.5D", "-0.0D", "0.0D", "7.75D", "DOUBLE('NaN')", NULL)
_RARE_DOUBLES = (*_DOUBLES, *_DOUBLES[:5], "DOUBLE('Infinity')", "-DOUBLE('Infinity')")
_TAGS = (
    "array('a', 'b')",
    "array('a', NULL)",
    "CAST(array() AS ARRAY<STRING>)",
    "array('', 'a', 'a')",
    "array('c')",
    "CAST(NULL AS ARRAY<STRING>)",
)
_FLAGS = (
    "map('a', 1, 'b', 2)",
    "map('a', CAST(NULL AS INT))",
    "CAST(map() AS MAP<STRING, INT>)",
    "CAST(NULL AS MAP<STRING, INT>)",
)
_INFOS = (
    "named_struct('a', 1, 'b', 'p')",
    "named_struct('a', 2, 'b', '')",
    "named_struct('a', CAST(NULL AS INT), 'b', 'q')",
    "CAST(NULL AS STRUCT<a: INT, b: STRING>)",
)


@dataclass(frozen=True)
class Column:
    """A column of a source.

    Attributes:
        values: SQL expressions, one of which a row has; or one that says it all, with {h} for a number from 0 to 9,999.
        kind: its type.
    """

    name: str
    kind: str
    values: tuple[str, ...]

    def expression(self, seed: int) -> str:
        """The value of row `id`, of those with this seed."""
        hashed = f"pmod(xxhash64(id, {seed}, '{self.name}'), 10000)"
        if len(self.values) == 1:
            return self.values[0].format(h=hashed)
        return f"element_at(array({', '.join(self.values)}), CAST({hashed} % {len(self.values)} AS INT) + 1)"


@dataclass(frozen=True)
class Source:
    """A source table.

    Attributes:
        key: its column that MERGE matches by; a row may be there twice.
        partition: the column that it is partitioned by, in some rounds.
        columns: the first is the key.
    """

    name: str
    key: str
    partition: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def select(self, first: int, last: int, seed: int, extra: Sequence[str] = ()) -> str:
        """A query of made rows with the keys from `first` to before `last`."""
        key, *others = self.columns
        items = [f"CAST(id AS {key.kind}) AS {key.name}"]
        items += [f"CAST({each.expression(seed)} AS {each.kind}) AS {each.name}" for each in others]
        items += [f"CAST(pmod(xxhash64(id, {seed}, '{name}'), 7) AS INT) AS {name}" for name in extra]
        return f"SELECT {', '.join(items)} FROM range({first}, {last}, 1, 1)"


_HALF_NULL = "CASE WHEN {h} % 7 = 0 THEN NULL ELSE "
ORDERS = Source(
    "orders",
    "oid",
    "region",
    (
        Column("oid", "BIGINT", ("id",)),
        Column("cid", "BIGINT", (_HALF_NULL + "{h} % 23 END",)),
        Column("region", "STRING", _REGIONS),
        Column("amount", "DECIMAL(12, 2)", (_HALF_NULL + "CAST({h} % 400 AS DECIMAL(10, 2)) * 0.25BD END",)),
        Column("qty", "INT", ("0", "1", "2", "3", "5", "-1", "7", NULL)),
        Column("price", "DOUBLE", _RARE_DOUBLES),
        Column(
            "at",
            "TIMESTAMP",
            (_HALF_NULL + "timestampadd(MINUTE, CAST({h} * 7 % 9000 AS INT), TIMESTAMP'2024-03-30 21:00:00') END",),
        ),
        Column("tags", "ARRAY<STRING>", _TAGS),
        Column("info", "STRUCT<a: INT, b: STRING>", _INFOS),
        Column("note", "STRING", _NOTES),
    ),
)
CUSTOMERS = Source(
    "customers",
    "id",
    "level",
    (
        Column("id", "BIGINT", ("id",)),
        Column("name", "STRING", ("'ann'", "'bob'", "'Ann'", "''", "'cid'", "'d e'", NULL)),
        Column("region", "STRING", _REGIONS),
        Column("level", "INT", ("1", "2", "3", NULL)),
        Column("score", "DOUBLE", _DOUBLES),
        Column("since", "DATE", (_HALF_NULL + "date_add(DATE'2024-02-27', CAST({h} % 40 AS INT)) END",)),
        Column("flags", "MAP<STRING, INT>", _FLAGS),
        Column("memo", "STRING", _NOTES),
    ),
)
ITEMS = Source(
    "items",
    "iid",
    "kind",
    (
        Column("iid", "BIGINT", ("id",)),
        Column("oid", "BIGINT", (_HALF_NULL + "{h} % 90 END",)),
        Column("kind", "STRING", ("'k1'", "'k2'", "'k3'", "''", NULL)),
        Column("units", "INT", ("1", "2", "3", "4", "0", NULL)),
        Column("cost", "DECIMAL(10, 2)", (_HALF_NULL + "CAST({h} % 90 AS DECIMAL(8, 2)) * 0.25BD END",)),
        Column("weight", "DOUBLE", _DOUBLES),
        Column("ok", "BOOLEAN", ("true", "false", "true", NULL)),
        Column("memo", "STRING", _NOTES),
    ),
)
SOURCES = (ORDERS, CUSTOMERS, ITEMS)
UNREAD = {"orders": "note", "customers": "memo", "items": "memo"}
"""The columns that no query reads."""

_FIRST_ROWS = {"orders": (20, 90), "customers": (12, 30), "items": (15, 70)}
_FEED = "'delta.enableChangeDataFeed' = 'true'"
_VECTORS = "'delta.enableDeletionVectors' = '{}'"
_KINDS = (  # of these, each round has one of the first two, one of the next two, and the last
    (_FEED, _VECTORS.format("false")),
    (_FEED, _VECTORS.format("true")),
    (_VECTORS.format("true"),),
    (_VECTORS.format("true"), "'delta.enableRowTracking' = 'true'"),
    (_VECTORS.format("false"),),
)


class Changes:
    """What is done to the three tables in one round.

    Args:
        random_: decides all.
        newest: gives the newest version of a table.
        readers: how many views read each source: what more of them read changes more often.
    """

    def __init__(self, random_: random.Random, newest: Callable[[str], int], readers: Mapping[str, int]) -> None:
        self._random = random_
        self._newest = newest
        self._weights = [1 + 3 * readers[source.name] for source in SOURCES]
        self._next = {source.name: 0 for source in SOURCES}
        self._extra: dict[str, dict[int, tuple[str, ...]]] = {source.name: {0: ()} for source in SOURCES}
        self._added = 0
        self._ways: tuple[tuple[float, Callable[[Source], list[str]]], ...] = (
            (5, self._insert),
            (2, self._insert_again),
            (5, self._update),
            (1, self._update_unread),
            (4, self._delete),
            (0.5, self._delete_all),
            (4, self._merge),
            (2, self._optimize),
            (2, self._restore),
            (1.5, self._overwrite),
            (0.7, self._replace),
            (1.5, self._add_column),
            (1, self._nothing_left),
            (0.5, self._no_row),
        )

    def create(self) -> list[str]:
        """The statements that make the tables, each with rows."""
        kinds = [self._random.choice(_KINDS[:2]), self._random.choice(_KINDS[2:4]), _KINDS[4]]
        self._random.shuffle(kinds)
        return [self._create(source, kind) for source, kind in zip(SOURCES, kinds, strict=True)]

    def _create(self, source: Source, properties: Sequence[str]) -> str:
        count = self._random.randint(*_FIRST_ROWS[source.name])
        partitioned = f" PARTITIONED BY ({source.partition})" if self._random.random() < 0.2 else ""
        rows = self._made(source, 0, count)
        return f"CREATE TABLE {source.name} USING delta{partitioned} TBLPROPERTIES ({', '.join(properties)}) AS {rows}"

    def changes(self) -> Sequence[Callable[[], list[str]]]:
        """Return one step: none to three changes; each, when called, gives its statements, and must be done before the next."""
        if self._random.random() < 0.04:
            return []
        return [self._change for _ in range(self._random.choice((1, 1, 2, 2, 3)))]

    def _change(self) -> list[str]:
        source = self._random.choices(SOURCES, self._weights)[0]
        weights, ways = zip(*self._ways, strict=True)
        statements: list[str] = self._random.choices(ways, weights)[0](source)
        return statements

    def _made(self, source: Source, first: int, last: int) -> str:
        self._next[source.name] = max(self._next[source.name], last)
        return source.select(first, last, self._random.randrange(1_000_000), self._extras(source))

    def _extras(self, source: Source) -> tuple[str, ...]:
        """The columns that were added to the table; a RESTORE may have taken some away."""
        known = self._extra[source.name]
        return known[max(version for version in known if version <= self._newest_known(source))]

    def _newest_known(self, source: Source) -> int:
        return self._newest(source.name) if len(self._extra[source.name]) > 1 else 0

    def _columns(self, source: Source) -> str:
        return ", ".join((*source.names, *self._extras(source)))

    def _some(self, source: Source) -> str:
        """A condition that holds for some rows."""
        pick = self._random
        share = pick.choice((1, 1, 2, 3, 5))
        names = source.names[1:]
        key = source.key
        common = {
            "orders": [
                f"qty = {pick.randint(0, 5)}",
                f"cid = {pick.randrange(23)}",
                "region = 'n'",
                "price > 1",
                "amount IS NULL",
            ],
            "customers": [f"level = {pick.randint(1, 3)}", "name = 'ann'", "region IS NULL", "score < 1"],
            "items": [f"units = {pick.randint(0, 4)}", f"oid = {pick.randrange(40)}", "kind = 'k1'", "ok", "NOT ok"],
        }[source.name]
        first = pick.randrange(max(1, self._next[source.name]))
        return pick.choice(
            [
                f"pmod(xxhash64({key}, {pick.randrange(1000)}), 10) < {share}",
                f"pmod(xxhash64({', '.join(name for name in names if name not in ('flags', 'tags', 'info'))}), 10) < {share}",
                f"{key} BETWEEN {first} AND {first + pick.randint(0, 6)}",
                pick.choice(common),
            ]
        )

    def _insert(self, source: Source) -> list[str]:
        first = self._next[source.name]
        rows = self._made(source, first, first + self._random.choice((1, 2, 5, 15)))
        return [f"INSERT INTO {source.name} ({self._columns(source)}) {rows}"]

    def _insert_again(self, source: Source) -> list[str]:
        """Rows which are there come once more."""
        columns = self._columns(source)
        rows = f"SELECT {columns} FROM {source.name} WHERE {self._some(source)} ORDER BY {source.key} LIMIT 8"
        return [f"INSERT INTO {source.name} ({columns}) {rows}"]

    def _update(self, source: Source) -> list[str]:
        changes = {
            "orders": [
                "amount = amount + 0.25BD",
                "qty = CASE WHEN qty = 3 THEN NULL ELSE coalesce(qty, 3) END",
                "region = CASE WHEN region = 'n' THEN 's' ELSE 'n' END",
                f"cid = {self._random.choice((NULL, '1', '2', 'cid + 1', '1000'))}",
                "price = CASE WHEN isnan(price) THEN 0.25D ELSE DOUBLE('NaN') END, qty = 1",
                "tags = array('a', 'z'), info = named_struct('a', 5, 'b', 'u')",
                "at = timestampadd(HOUR, 1, at)",
                "oid = oid + 1",
            ],
            "customers": [
                "level = CASE WHEN level = 3 THEN NULL ELSE coalesce(level, 0) + 1 END",
                "name = 'zoe'",
                "region = 'e', score = 4.0D",
                "score = -score",
                "flags = map('a', 7)",
                "id = id + 1",
                "since = date_add(since, 1)",
            ],
            "items": [
                "units = 5",
                f"oid = {self._random.choice((NULL, '3', 'oid + 1'))}",
                "kind = CASE WHEN kind = 'k1' THEN 'k2' ELSE 'k1' END",
                "cost = cost + 1.00BD",
                "ok = NOT ok, weight = 1.5D",
                "weight = NULL",
            ],
        }[source.name]
        return [f"UPDATE {source.name} SET {self._random.choice(changes)} WHERE {self._some(source)}"]

    def _update_unread(self, source: Source) -> list[str]:
        where = self._random.choice(("", f" WHERE {self._some(source)}"))
        return [f"UPDATE {source.name} SET {UNREAD[source.name]} = concat(coalesce({UNREAD[source.name]}, ''), '!'){where}"]

    def _delete(self, source: Source) -> list[str]:
        return [f"DELETE FROM {source.name} WHERE {self._some(source)}"]

    def _delete_all(self, source: Source) -> list[str]:
        return [f"DELETE FROM {source.name}", *(self._insert(source) if self._random.random() < 0.5 else [])]

    def _merge(self, source: Source) -> list[str]:
        """Updates, inserts and deletes of one commit; each key comes once from the made rows."""
        pick = self._random
        next_ = self._next[source.name]
        first = pick.randrange(max(1, next_))
        rows = self._made(source, first, max(first + 1, min(first + 12, next_ + pick.choice((0, 2, 5)))))
        columns = (*source.names, *self._extras(source))
        key, value = source.key, source.names[pick.randrange(1, len(source.names) - 1)]
        inserted = f"INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
        updated = pick.choice(
            (f"{value} = s.{value}", ", ".join(f"{name} = s.{name}" for name in source.names[1:]), f"{source.names[-1]} = 'm'")
        )
        clauses = [
            pick.choice((f"WHEN MATCHED AND s.{key} % 3 = 0 THEN DELETE", "")),
            f"WHEN MATCHED THEN UPDATE SET {updated}",
            pick.choice((f"WHEN NOT MATCHED THEN {inserted}", f"WHEN NOT MATCHED AND s.{key} % 2 = 0 THEN {inserted}", "")),
            pick.choice((f"WHEN NOT MATCHED BY SOURCE AND t.{key} % 11 = 5 THEN DELETE", "", "")),
        ]
        chosen = " ".join(clause for clause in clauses if clause)
        return [f"MERGE INTO {source.name} t USING ({rows}) s ON t.{key} = s.{key} {chosen}"]

    def _optimize(self, source: Source) -> list[str]:
        ways = (f"OPTIMIZE {source.name}", f"OPTIMIZE {source.name}", f"REORG TABLE {source.name} APPLY (PURGE)")
        return [self._random.choice(ways)]

    def _restore(self, source: Source) -> list[str]:
        newest = self._newest(source.name)
        version = self._random.randint(max(0, newest - 4), newest)
        known = self._extra[source.name]
        if len(known) > 1:  # the restored version's columns
            known[newest + 1] = known[max(each for each in known if each <= version)]
        return [f"RESTORE TABLE {source.name} TO VERSION AS OF {version}"]

    def _overwrite(self, source: Source) -> list[str]:
        columns = self._columns(source)
        if self._random.random() < 0.5:
            rows = self._made(source, 0, self._random.choice((1, 10, 30)))
        else:
            rows = f"SELECT {columns} FROM {source.name} WHERE NOT coalesce({self._some(source)}, false)"
        return [f"INSERT OVERWRITE {source.name} ({columns}) {rows}"]

    def _replace(self, source: Source) -> list[str]:
        """Only the rows of a condition are replaced."""
        columns = self._columns(source)
        value = self._random.choice(
            ("'n'", "'s'") if source is ORDERS else ("1", "2") if source is CUSTOMERS else ("'k1'", "'k2'")
        )
        first = self._next[source.name]
        rows = self._made(source, first, first + 12)
        chosen = f"SELECT {columns} FROM ({rows}) WHERE {source.partition} = {value}"
        return [f"INSERT INTO {source.name} REPLACE WHERE {source.partition} = {value} {chosen}"]

    def _add_column(self, source: Source) -> list[str]:
        """A column, and rows that have it."""
        self._added += 1
        name = f"extra{self._added}"
        added = f"ALTER TABLE {source.name} ADD COLUMN {name} INT"
        self._extra[source.name][self._newest(source.name) + 1] = (*self._extras(source), name)
        first = self._next[source.name]
        self._next[source.name] = first + 3
        names = (*self._extra[source.name][max(self._extra[source.name])],)
        rows = source.select(first, first + 3, self._random.randrange(1_000_000), names)
        return [added, f"INSERT INTO {source.name} ({', '.join((*source.names, *names))}) {rows}"]

    def _nothing_left(self, source: Source) -> list[str]:
        """Rows come and go."""
        first = self._next[source.name]
        inserted = self._insert(source)
        return [*inserted, f"DELETE FROM {source.name} WHERE {source.key} >= {first}"]

    def _no_row(self, source: Source) -> list[str]:
        way = self._random.choice((f"DELETE FROM {source.name}", f"UPDATE {source.name} SET {UNREAD[source.name]} = 'never'"))
        return [f"{way} WHERE {source.key} = -1"]


KINDS_OF_CHANGE: Mapping[str, str] = {
    "INSERT INTO": "INSERT",
    "INSERT OVERWRITE": "INSERT OVERWRITE",
    "UPDATE": "UPDATE",
    "DELETE": "DELETE",
    "MERGE": "MERGE",
    "OPTIMIZE": "OPTIMIZE",
    "REORG": "REORG",
    "RESTORE": "RESTORE",
    "ALTER TABLE": "ADD COLUMN",
}


def kind_of(statement: str) -> str:
    """The kind of a change, as counts show it; empty for any other statement."""
    if "REPLACE WHERE" in statement:
        return "REPLACE WHERE"
    return next((kind for start, kind in KINDS_OF_CHANGE.items() if statement.startswith(start)), "")
