"""What the generator makes: queries as small trees, rendered as a flow, as a bounded query, or as a batch query."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

STREAM = "ev"
END = "GLOBAL WINDOW END OF STREAM"


class Form(Enum):
    """How a query is asked."""

    BATCH = "batch"
    FLOW = "flow"
    END = "end of stream"


_FLOATING = ("double", "float")
_PICKS_ONE = ("max(", "min(")
"""How functions begin that add nothing."""


@dataclass(frozen=True)
class Expression:
    """An expression of SQL.

    Attributes:
        template: SQL with {0}, {1} .. for the children.
        kind: of its value, such as "int" or "strings"; see `scalars.KINDS`.
        children: expressions inside.
        batch: the template in a batch query; empty: the same. It differs for functions that are sqlext's own.
        names: the ways in which a column may be written; empty: it is no column.
        is_aggregate: whether it is the call of an aggregate function.
        is_approximate: whether its value depends on the order of additions, in the last digits.
        is_unordered: whether it is an array whose order is not defined.
    """

    template: str
    kind: str
    children: tuple[Expression, ...] = ()
    batch: str = ""
    names: tuple[str, ...] = ()
    is_aggregate: bool = False
    is_approximate: bool = False
    is_unordered: bool = False

    def render(self, form: Form) -> str:
        template = self.batch if form is Form.BATCH and self.batch else self.template
        return template.format(*(child.render(form) for child in self.children)) if self.children else template

    @property
    def adds_fractions(self) -> bool:
        """Whether it is a floating number made by adding others: its last digits depend on the order of additions."""
        if self.is_aggregate and any(child.kind in _FLOATING for child in self.children):
            return self.kind in _FLOATING and not self.template.startswith(_PICKS_ONE)
        return self.kind in _FLOATING and any(child.adds_fractions for child in self.children)

    def holds_aggregate(self) -> bool:
        return self.is_aggregate or any(child.holds_aggregate() for child in self.children)


@dataclass(frozen=True)
class Item:
    """One expression of a select list, with its alias or without one."""

    value: Expression
    alias: str = ""

    def render(self, form: Form) -> str:
        return self.value.render(form) + (f" AS {self.alias}" if self.alias else "")


@dataclass(frozen=True)
class Source:
    """What stands behind FROM.

    Attributes:
        template: SQL with {0} for the stream, which is `STREAM ev` or `ev`.
        has_unique_id: whether `id` still tells rows apart.
        may_join: whether a table without a stream stands beside it.
    """

    template: str
    has_unique_id: bool = True

    def render(self, form: Form) -> str:
        return self.template.format(STREAM if form is Form.BATCH else f"STREAM {STREAM}")


class Grouping(Enum):
    """How the keys of GROUP BY are written."""

    NONE = ""
    PLAIN = "{0}"
    ORDINAL = "ordinal"
    ALIAS = "alias"
    ALL = "ALL"
    ROLLUP = "ROLLUP ({0})"
    CUBE = "CUBE ({0})"
    SETS = "GROUPING SETS (({0}), ({1}), ())"


@dataclass(frozen=True)
class Query:
    """One query over the stream.

    Attributes:
        items: the select list.
        keys: of GROUP BY, of which the i-th stands in the select list at `places[i]`, or nowhere (-1).
        order: what ORDER BY names; empty: no ORDER BY.
        limit: rows, with `order` only.
        outer: the template of a query around it, with {0} for it, and of the WITH before; empty: none.
    """

    items: tuple[Item, ...]
    source: Source
    where: Expression | None = None
    keys: tuple[Expression, ...] = ()
    places: tuple[int, ...] = ()
    grouping: Grouping = Grouping.NONE
    having: Expression | None = None
    is_distinct: bool = False
    order: tuple[str, ...] = ()
    limit: int = 0
    outer: Outer | None = None

    def render(self, form: Form) -> str:
        core = self._core(form)
        return self.outer.render(core, form) if self.outer else core

    def _core(self, form: Form) -> str:
        distinct = "DISTINCT " if self.is_distinct else ""
        parts = [f"SELECT {distinct}{', '.join(item.render(form) for item in self.items)}", f"FROM {self.source.render(form)}"]
        parts += [f"WHERE {self.where.render(form)}"] if self.where else []
        parts += [f"GROUP BY {self._group_by(form)}"] if self.grouping is not Grouping.NONE else []
        parts += [f"HAVING {self.having.render(form)}"] if self.having else []
        parts += [END] if form is Form.END else []
        parts += [f"ORDER BY {', '.join(self.order)} LIMIT {self.limit}"] if self.order else []
        return " ".join(parts)

    def _group_by(self, form: Form) -> str:
        keys = [key.render(form) for key in self.keys]
        places = self.places or (-1,) * len(keys)
        if self.grouping is Grouping.ALL:
            return "ALL"
        if self.grouping is Grouping.ORDINAL:
            return ", ".join(str(at + 1) if at >= 0 else key for key, at in zip(keys, places, strict=True))
        if self.grouping is Grouping.ALIAS:
            named = [self.items[at].alias if at >= 0 else "" for at in places]
            return ", ".join(alias or key for key, alias in zip(keys, named, strict=True))
        return str(self.grouping.value).format(", ".join(keys), keys[0])

    def holds_aggregate(self) -> bool:
        return self.grouping is not Grouping.NONE or self.is_distinct or any(i.value.holds_aggregate() for i in self.items)

    def shown(self) -> tuple[Item, ...]:
        """The select list whose columns come out."""
        return self.outer.items if self.outer and self.outer.items else self.items


@dataclass(frozen=True)
class Outer:
    """A query around another, which it calls q.

    Attributes:
        items: its select list; empty: all columns.
        rest: what follows its FROM, with a leading space, or nothing.
        is_with: whether the inner query stands in a WITH.
    """

    items: tuple[Item, ...]
    rest: str = ""
    is_with: bool = False

    def render(self, core: str, form: Form) -> str:
        chosen = ", ".join(item.render(form) for item in self.items) or "*"
        if self.is_with:
            return f"WITH q AS ({core}) SELECT {chosen} FROM q{self.rest}"
        return f"SELECT {chosen} FROM ({core}) AS q{self.rest}"
