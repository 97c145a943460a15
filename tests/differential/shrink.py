"""Makes a failing query smaller, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.differential.scalars import COLUMN_SUBSTITUTES, COLUMNS, LITERALS
from tests.differential.tree import Expression, Grouping, Item, Query, Source

Check = Callable[[Sequence[Query]], Query | None]
"""Of several queries, the first that still fails in the same way; None when none does."""


def shrink(query: Query, first_failing: Check, rounds: int, at_once: int) -> Query:
    """The smallest failing query that is found.

    Args:
        rounds: how often `first_failing` is asked, at most.
        at_once: how many queries it is given.
    """
    for _ in range(rounds):
        found = None
        candidates = list(dict.fromkeys(smaller(query)))
        for start in range(0, len(candidates), at_once):
            found = first_failing(candidates[start : start + at_once])
            if found is not None:
                break
        if found is None:
            return query
        query = found
    return query


def smaller(query: Query) -> Iterator[Query]:
    """Queries with one thing less, the largest steps first."""
    yield from _without_outer(query)
    if len(query.items) > 1:  # what the outer query reads is missed by batch, which is another failure
        for kept in (query.items[: len(query.items) // 2], query.items[len(query.items) // 2 :]):
            yield _with_items(query, kept)
        for at in range(len(query.items)):
            yield _with_items(query, query.items[:at] + query.items[at + 1 :])
    yield from _without_clauses(query)
    for at in range(len(query.keys)):
        yield from _without_key(query, at)
    for at, item in enumerate(query.items):
        for value in simpler(item.value):
            yield replace(query, items=(*query.items[:at], replace(item, value=value), *query.items[at + 1 :]))
    for at, key in enumerate(query.keys):  # with what shows it
        for value in simpler(key):
            yield _with_key(query, at, value)


def _without_outer(query: Query) -> Iterator[Query]:
    outer = query.outer
    if outer is None:
        return
    yield replace(query, outer=None)
    if outer.rest:
        yield replace(query, outer=replace(outer, rest=""))
    for at, item in enumerate(outer.items):
        yield replace(query, outer=replace(outer, items=outer.items[:at] + outer.items[at + 1 :]))
        for value in simpler(item.value):
            yield replace(
                query, outer=replace(outer, items=(*outer.items[:at], replace(item, value=value), *outer.items[at + 1 :]))
            )


def _without_clauses(query: Query) -> Iterator[Query]:
    if query.where is not None:
        yield replace(query, where=None)
        for value in simpler(query.where):
            yield replace(query, where=value)
    if query.having is not None:
        yield replace(query, having=None)
        for value in simpler(query.having):
            yield replace(query, having=value)
    if query.order:
        yield replace(query, order=(), limit=0)
    if query.source.template != "{0} AS e":
        yield replace(query, source=Source("{0} AS e"))
    if query.grouping not in (Grouping.NONE, Grouping.PLAIN):
        yield replace(query, grouping=Grouping.PLAIN)


def _with_items(query: Query, items: tuple[Item, ...]) -> Query:
    """Other items; each key's place is where its expression stands now."""
    shown = [query.items[at] if at >= 0 else None for at in query.places]
    places = tuple(items.index(item) if item in items else -1 for item in shown)
    order = query.order[: len(items)]
    return replace(query, items=items, places=places, order=order)


def _without_key(query: Query, at: int) -> Iterator[Query]:
    keys = query.keys[:at] + query.keys[at + 1 :]
    places = query.places[:at] + query.places[at + 1 :]
    grouping = query.grouping if keys else Grouping.NONE
    less = replace(query, keys=keys, places=places, grouping=grouping)
    shown = query.places[at]
    if shown >= 0 and len(query.items) > 1:
        yield _with_items(less, query.items[:shown] + query.items[shown + 1 :])
    yield less


def _with_key(query: Query, at: int, value: Expression) -> Query:
    keys = (*query.keys[:at], value, *query.keys[at + 1 :])
    shown = query.places[at]
    items = query.items
    if shown >= 0:
        items = (*items[:shown], replace(items[shown], value=value), *items[shown + 1 :])
    return replace(query, keys=keys, items=items)


def simpler(value: Expression) -> Iterator[Expression]:
    """Expressions of the same kind, of which each has something less."""
    for child in value.children:
        if child.kind == value.kind and not (value.is_aggregate and not child.is_aggregate):
            yield child
    if not value.is_aggregate:
        for inner in _inside(value):
            if inner is not value and inner.kind == value.kind and inner not in value.children:
                yield inner
    if value.children and not value.holds_aggregate():
        yield from (each for each in _smallest(value.kind) if each != value)
    if value.names and value.template != value.names[0]:
        yield replace(value, template=value.names[0])
    if (filter_ := f" FILTER (WHERE {{{len(value.children) - 1}}})") in value.template:
        template, batch = (text.removesuffix(filter_) for text in (value.template, value.batch))
        yield replace(value, template=template, batch=batch, children=value.children[:-1])
    for at, child in enumerate(value.children):
        for less in simpler(child):
            yield replace(value, children=(*value.children[:at], less, *value.children[at + 1 :]))


def _inside(value: Expression) -> Iterator[Expression]:
    yield value
    for child in value.children:
        yield from _inside(child)


def _smallest(kind: str) -> Iterator[Expression]:
    if kind in COLUMNS:
        yield Expression(COLUMNS[kind][0], kind, names=(COLUMNS[kind][0],))
    if kind in LITERALS:
        yield Expression(LITERALS[kind][0], kind)
    elif kind in COLUMN_SUBSTITUTES:
        yield Expression(COLUMN_SUBSTITUTES[kind], kind)
