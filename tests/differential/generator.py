"""The generator: seeded random queries over the columns of `data`."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from tests.differential.aggregates import UNIQUE_ID, aggregate, at_the_top
from tests.differential.scalars import COLUMNS, PLAIN, scalar
from tests.differential.tree import Expression, Grouping, Item, Outer, Query, Source

_SOURCES = (
    *(Source("{0} AS e"),) * 12,
    Source("{0} E"),
    Source("(SELECT * FROM {0} WHERE id % 2 = 1 UNION ALL SELECT * FROM {0} WHERE id % 2 = 0) AS e"),
    Source("(SELECT * FROM {0} UNION ALL SELECT * FROM {0}) AS e", has_unique_id=False),
    Source("{0} AS e LATERAL VIEW explode(tags) z AS tag", has_unique_id=False),
    Source("{0} AS e LATERAL VIEW OUTER posexplode(nums) z AS pos, num", has_unique_id=False),
    Source("{0} AS e JOIN (SELECT k AS dk, label FROM dim) AS z ON e.k = z.dk"),
    Source("{0} AS e LEFT JOIN (SELECT v AS dv, label FROM dim) AS z ON e.v = z.dv"),
    Source("{0} AS e LEFT SEMI JOIN dim ON e.k = dim.k"),
    Source("(SELECT *, upper(k) AS big FROM {0}) AS e"),
)
_ALIASES = (
    "v",
    "k",
    "K",
    "id",
    "s",
    "payload",
    "total",
    "value",
    "x",
    "ts",
    "`by`",
    "n",
    "d",
    "label",
    "Name",
    "count",
    "`\u00e4`",
)
_KEY_KINDS = ("string", "string", "string", "int", "date", "boolean", "double", "timestamp", "decimal", "float", "bigint")
_PLAIN_KEYS = (
    "k",
    "k",
    "id",
    "v",
    "x",
    "payload.id",
    "payload.k",
    "s",
    "b",
    "dt",
    "d",
    "f",
    "payload.deep.k",
    "tags",
    "payload.deep",
    "bin",
    "v",
)
_WINDOWS = (
    "rank() OVER (ORDER BY {0} DESC NULLS LAST)",
    "dense_rank() OVER (ORDER BY {0})",
    "sum({0}) OVER ()",
    "{0} - max({0}) OVER ()",
    "count(*) OVER (PARTITION BY {0} % 2)",
)
_NAMESAKES = {
    "k": "payload.k",
    "payload.k": "k",
    "payload.deep.k": "payload.k",
    "ts": "payload.ts",
    "payload.ts": "ts",
    "id": "payload.id",
    "x": "payload.v",
    "payload.v": "x",
    "v": "payload.id",
    "payload.id": "payload.deep.v",
    "payload.deep.v": "v",
}
"""Columns of one kind that are easy to mix up."""
_QUOTED = re.compile(r"'(?:[aAbBxX-]|\$\.[xX]|[aA]%|\[[aA]-[zZ]\]\+?)'")
_TIME_KEYS = (
    "window({0}, '1 hour')",
    "window({0}, '2 hours', '1 hour')",
    "date_trunc('DAY', {0})",
    "window({0}, '1 day', '1 day', '2 hours')",
)


class Generator:
    """Makes queries, one after the other.

    Args:
        random_: where all chance comes from.
    """

    def __init__(self, random_: random.Random) -> None:
        self._random = random_

    def query(self) -> Query:
        chance = self._random.random()
        if chance < 0.03:
            return self._ranked()
        if chance < 0.12:
            return self._appending()
        if chance < 0.2:
            return self._distinct()
        return self._aggregating()

    # Expressions over the stream's rows.

    def _column(self, kind: str) -> Expression | None:
        names = COLUMNS.get(kind)
        return self._named(self._random.choice(names), kind) if names else None

    def _named(self, name: str, kind: str) -> Expression:
        spellings = (name, f"e.{name}", name.upper(), f"E.{name.capitalize()}", "`" + name.replace(".", "`.`") + "`")
        usual = self._random.random() < 0.7
        return Expression(name if usual else self._random.choice(spellings), kind, names=spellings)

    def _leaf(self, kind: str) -> Expression | None:
        return self._column(kind) if self._random.random() < 0.85 else None

    def _scalar(self, kind: str, depth: int) -> Expression:
        return scalar(self._random, kind, depth, self._leaf)

    def _argument(self, kind: str) -> Expression:
        return self._scalar(kind, self._random.choice((0, 0, 0, 1, 1, 2)))

    def _spelled_anew(self, made: Expression) -> Expression:
        """The same expression with its columns written otherwise."""
        if made.names:
            return replace(made, template=self._random.choice(made.names)) if self._random.random() < 0.3 else made
        return replace(made, children=tuple(self._spelled_anew(child) for child in made.children))

    def _twin(self, made: Expression) -> Expression:
        """An expression that looks like this one, and is another: a namesake in a struct, a string in the other case."""
        if made.names == UNIQUE_ID.names:
            return made
        if made.names:
            name = _NAMESAKES.get(made.names[0])
            kind = next((kind for kind, names in COLUMNS.items() if name in names), made.kind)
            return self._named(name, kind) if name else made
        text = _QUOTED.sub(lambda found: found[0].swapcase(), made.template) if self._random.random() < 0.5 else made.template
        batch = made.batch and (
            _QUOTED.sub(lambda found: found[0].swapcase(), made.batch) if text != made.template else made.batch
        )
        return replace(made, template=text, batch=batch, children=tuple(self._twin(child) for child in made.children))

    # Queries.

    def _source(self) -> Source:
        return self._random.choice(_SOURCES)

    def _where(self) -> Expression | None:
        return self._scalar("boolean", self._random.choice((1, 1, 2))) if self._random.random() < 0.35 else self._subquery()

    def _subquery(self) -> Expression | None:
        if self._random.random() > 0.06:
            return None
        choices = (
            "k IN (SELECT k FROM dim)",
            "EXISTS (SELECT 1 FROM dim WHERE dim.k = e.k)",
            "v > (SELECT min(v) FROM dim)",
            "e.k NOT IN (SELECT label FROM dim WHERE label IS NOT NULL)",
        )
        return Expression(self._random.choice(choices), "boolean")

    def _appending(self) -> Query:
        kinds = (
            "string",
            "int",
            "double",
            "date",
            "timestamp",
            "strings",
            "map",
            "struct",
            "decimal",
            "boolean",
            "bigint",
            "float",
        )
        values = [
            self._scalar(self._random.choice(kinds), self._random.choice((0, 1, 2))) for _ in range(self._random.randint(1, 5))
        ]
        query = Query(self._aliased(values), self._source(), self._where())
        return self._with_outer(query, may_aggregate=False) if self._random.random() < 0.2 else query

    def _ranked(self) -> Query:
        """The first rows of each partition, by an order in which no two rows have the same place."""
        name = self._random.choice(_PLAIN_KEYS)
        kind = next((kind for kind, names in COLUMNS.items() if name in names), "string")
        order = self._random.choice(("id", "id DESC", "E.ID DESC NULLS LAST", "k DESC, id DESC", "v NULLS LAST, id"))
        window = f"row_number() OVER (PARTITION BY {self._named(name, kind).template} ORDER BY {order})"
        source = Source(f"(SELECT *, {window} AS r FROM {{0}} AS e) AS e")
        kinds, count = ("string", "int", "double", "date", "struct", "strings", "bigint"), self._random.randint(1, 4)
        depths = self._random.choice(((0,), (0, 1)))
        values = [self._scalar(self._random.choice(kinds), self._random.choice(depths)) for _ in range(count)]
        bounds = ("r = 1", "R <= 1", "r <= 2", "e.r < 4", "3 >= r", "r BETWEEN 2 AND 3")
        where = Expression(self._random.choice(bounds), "boolean")
        more = self._where() if self._random.random() < 0.3 else None
        if more is not None:
            where = Expression("{0} AND ({1})", "boolean", (where, more))
        return Query(self._aliased(values), source, where)

    def _distinct(self) -> Query:
        values = [self._key() for _ in range(self._random.randint(1, 3))]
        return Query(self._aliased(values), self._source(), self._where(), is_distinct=True)

    def _key(self) -> Expression:
        chance = self._random.random()
        if chance < 0.5:
            name = self._random.choice(_PLAIN_KEYS)
            kind = next((kind for kind, names in COLUMNS.items() if name in names), "string")
            return self._named(name, kind)
        if chance < 0.6:
            return Expression(
                self._random.choice(_TIME_KEYS), "timestamp" if chance > 0.59 else "window", (self._named("ts", "timestamp"),)
            )
        return self._scalar(self._random.choice(_KEY_KINDS), self._random.choice((1, 1, 2)))

    def _aggregating(self) -> Query:
        source = self._source()
        keys = tuple(self._key() for _ in range(self._random.choice((0, 1, 1, 1, 2, 2, 3))))
        calls = [self._result(source, keys) for _ in range(self._random.randint(1, 4))]
        if keys and self._random.random() < 0.15:
            keys = (*keys, self._twin(self._random.choice(keys)))
        if self._random.random() < 0.2:
            calls.append(self._twin(self._random.choice(calls)))
        shown = [key for key in keys if self._random.random() < 0.93]
        values = [*map(self._spelled_anew, shown), *calls]
        grouping = self._grouping(keys, shown)
        if grouping in (Grouping.ROLLUP, Grouping.CUBE, Grouping.SETS) and self._random.random() < 0.6:
            values.append(Expression("grouping({0})", "int", (keys[0],), is_aggregate=True))
        if self._random.random() < 0.08 and keys:
            values.append(self._window(source))
        mixed = list(range(len(values)))
        if self._random.random() < 0.3 and grouping is not Grouping.ORDINAL:
            self._random.shuffle(mixed)
        items = self._aliased([values[at] for at in mixed])
        places = tuple(mixed.index(shown.index(key)) if key in shown else -1 for key in keys)
        query = Query(items, source, self._where(), keys, places, grouping, self._having(source, keys))
        return self._topped(query)

    def _grouping(self, keys: tuple[Expression, ...], shown: list[Expression]) -> Grouping:
        if not keys:
            return Grouping.NONE
        chance = self._random.random()
        if chance < 0.12 and len(keys) > 1:
            return self._random.choice((Grouping.ROLLUP, Grouping.CUBE, Grouping.SETS))
        if chance < 0.28 and len(shown) == len(keys):
            return self._random.choice((Grouping.ORDINAL, Grouping.ALL, Grouping.ALIAS))
        return Grouping.PLAIN

    def _result(self, source: Source, keys: tuple[Expression, ...]) -> Expression:
        """An aggregate, or an expression above aggregates and keys."""
        chance = self._random.random()
        if chance < 0.12:
            return at_the_top(self._random, source.has_unique_id, self._argument)
        kinds = (
            "bigint",
            "bigint",
            "int",
            "string",
            "string",
            "double",
            "decimal",
            "date",
            "timestamp",
            "boolean",
            "strings",
            "ints",
            "map",
            "struct",
        )
        kind = self._random.choice(kinds)
        return scalar(
            self._random, kind, 0 if chance < 0.5 else self._random.choice((1, 1, 2)), lambda k: self._above(k, source, keys)
        )

    def _above(self, kind: str, source: Source, keys: tuple[Expression, ...]) -> Expression | None:
        same = [key for key in keys if key.kind == kind]
        if same and self._random.random() < 0.2:
            return self._spelled_anew(self._random.choice(same))
        return aggregate(self._random, kind, source.has_unique_id, self._argument)

    def _window(self, source: Source) -> Expression:
        call = aggregate(self._random, "bigint", source.has_unique_id, self._argument)
        assert call is not None
        return Expression(self._random.choice(_WINDOWS), "bigint", (call,))

    def _having(self, source: Source, keys: tuple[Expression, ...]) -> Expression | None:
        if self._random.random() > 0.15 or not keys:
            return None
        return scalar(self._random, "boolean", 1, lambda kind: self._above(kind, source, keys))

    def _aliased(self, values: list[Expression]) -> tuple[Item, ...]:
        names = list(_ALIASES)
        self._random.shuffle(names)
        taken: set[str] = set()
        items = []
        for at, value in enumerate(values):
            fresh = next(name for name in names if name.lower() not in taken)
            alias = fresh if self._random.random() < 0.3 else f"c{at}"
            own = value.template.rpartition(".")[2].strip("`").lower() if value.names else ""
            if own and own not in taken and self._random.random() < 0.6:
                alias = ""  # the column's own name
            taken.add(own if not alias else alias.lower())
            items.append(Item(value, alias))
        return tuple(items)

    # What stands above.

    def _topped(self, query: Query) -> Query:
        chance = self._random.random()
        if chance < 0.06 and self._can_be_sorted(query):
            names = tuple(
                f"{at + 1} {self._random.choice(('DESC NULLS LAST', 'ASC', 'DESC', ''))}".strip()
                for at in range(len(query.items))
            )
            return replace(query, order=names, limit=self._random.randint(1, 4))
        return self._with_outer(query, may_aggregate=True) if chance < 0.25 else query

    def _can_be_sorted(self, query: Query) -> bool:
        return all(item.value.kind in PLAIN and not item.value.is_approximate for item in query.items)

    def _with_outer(self, query: Query, may_aggregate: bool) -> Query:
        columns = [(self._name_of(item), item.value) for item in query.items]
        usable = [(name, value) for name, value in columns if value.kind in PLAIN and not value.is_approximate]
        leaves = {value.kind: name for name, value in usable}
        is_with = self._random.random() < 0.5

        def leaf(kind: str) -> Expression | None:
            return (
                Expression(f"q.{leaves[kind]}" if self._random.random() < 0.4 else leaves[kind], kind) if kind in leaves else None
            )

        chance = self._random.random()
        if chance < 0.3 or not usable or (not may_aggregate and chance < 0.6):
            return replace(query, outer=Outer((), is_with=is_with))
        if chance < 0.5 or not may_aggregate:
            values = [scalar(self._random, self._random.choice(list(leaves)), 1, leaf) for _ in range(self._random.randint(1, 3))]
            return replace(query, outer=Outer(tuple(Item(v, f"o{at}") for at, v in enumerate(values)), "", is_with))
        if chance < 0.8:
            return replace(query, outer=self._aggregate_again(leaves, is_with))
        name, value = self._random.choice(usable)
        column = {"string": "k", "int": "v", "bigint": "v"}.get(value.kind)
        if column is None:
            return replace(query, outer=Outer((), f" WHERE q.{name} IS NOT NULL", is_with))
        kind = self._random.choice(("JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"))
        shown = tuple(
            Item(Expression(f"q.{each}", item.kind, is_approximate=item.is_approximate, is_unordered=item.is_unordered), f"o{at}")
            for at, (each, item) in enumerate(columns)
        )
        return replace(query, outer=Outer(shown, f" {kind} dim ON q.{name} = dim.{column}", is_with))

    def _aggregate_again(self, leaves: dict[str, str], is_with: bool) -> Outer:
        kind = self._random.choice(list(leaves))
        key = Expression(f"q.{leaves[kind]}", kind)
        calls = [
            Expression("count(*)", "bigint", is_aggregate=True),
            Expression(f"max({leaves[kind]})", kind, is_aggregate=True),
            Expression(f"count(DISTINCT q.{leaves[kind]})", "bigint", is_aggregate=True),
        ]
        call = self._random.choice(calls)
        if self._random.random() < 0.4:
            return Outer((Item(call, "o0"),), "", is_with)
        return Outer((Item(key, "o0"), Item(call, "o1")), f" GROUP BY {key.template}", is_with)

    def _name_of(self, item: Item) -> str:
        return item.alias or item.value.template.rpartition(".")[2]
