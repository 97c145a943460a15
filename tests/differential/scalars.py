"""The scalar grammar: columns, literals, and the operators and functions of `scalars.txt`, by the kind of their value.

All are safe in ANSI mode for the rows of `data`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.differential.tree import Expression

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "int": ("v", "v", "payload.id", "payload.deep.v"),
    "bigint": ("id", "w"),
    "decimal": ("d", "d", "d", "wide"),
    "double": ("x", "payload.v"),
    "float": ("f",),
    "string": ("k", "k", "s", "payload.k", "payload.deep.k"),
    "json": ("j",),
    "day": ("ds",),
    "boolean": ("b",),
    "date": ("dt",),
    "timestamp": ("ts", "ts", "payload.ts", "payload.ts", "ntz"),
    "strings": ("tags",),
    "ints": ("nums",),
    "map": ("m",),
    "struct": ("payload", "payload.deep"),
    "binary": ("bin",),
}
LITERALS: Mapping[str, tuple[str, ...]] = {
    "int": ("0", "1", "-1", "2", "CAST(NULL AS INT)"),
    "bigint": ("0L", "1L", "12L"),
    "decimal": ("1.50", "0.1", "2BD"),
    "double": ("0.5D", "1e0", "-0.0D", "double('NaN')"),
    "float": ("0.5F", "-0.0F"),
    "string": ("'a'", "'A'", "''", "r'a\\d'", "'it''s'", "'x' 'y'", "CAST(NULL AS STRING)", '"b"'),
    "boolean": ("true", "FALSE", "CAST(NULL AS BOOLEAN)"),
    "date": ("DATE'2024-03-31'", "date '1969-12-31'"),
    "timestamp": ("TIMESTAMP'2024-03-31 12:00:00'",),
    "strings": ("array('a', 'A', NULL)",),
    "ints": ("array(1, 2)",),
    "map": ("map('a', 1)",),
    "binary": ("X'61'",),
}


def _read() -> dict[str, tuple[str, ...]]:
    grammar: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "scalars.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            templates = grammar.setdefault(line.strip("[]"), [])
        elif line:
            templates.append(line)
    return {kind: tuple(templates) for kind, templates in grammar.items()}


GRAMMAR: Mapping[str, tuple[str, ...]] = _read()
"""By the kind of the value, templates; {int} is a child of that kind."""
PLAIN = ("string", "int", "bigint", "decimal", "double", "boolean", "date", "timestamp", "float")
"""Kinds that every operator takes: they can be compared, sorted and grouped by."""

Leaf = Callable[[str], Expression | None]
"""Gives an expression of a kind that may stand at the bottom of another, or None when it knows none."""


def scalar(random_: random.Random, kind: str, depth: int, leaf: Leaf) -> Expression:
    """An expression of a kind.

    Args:
        depth: how many operators may stand above each other.
        leaf: what stands at the bottom.
    """
    templates = GRAMMAR.get(kind, ())
    if depth > 0 and templates and random_.random() < 0.85:
        return fill(random_, random_.choice(templates), kind, lambda inner: scalar(random_, inner, depth - 1, leaf))
    found = leaf(kind)
    if found is None and kind in LITERALS:
        return Expression(random_.choice(LITERALS[kind]), kind)
    if found is None and kind in COLUMN_SUBSTITUTES:
        return Expression(COLUMN_SUBSTITUTES[kind], kind)
    if found is None:
        return fill(random_, random_.choice(templates), kind, lambda inner: scalar(random_, inner, 0, leaf))
    return found


COLUMN_SUBSTITUTES = {"json": '\'{"x": "l", "X": "U", "order-id": "o"}\'', "day": "'31.03.2024'"}


def fill(random_: random.Random, template: str, kind: str, child: Callable[[str], Expression]) -> Expression:
    """Put children where a template names kinds."""
    children: list[Expression] = []
    text, rest = "", template
    while "{" in rest:
        before, _, rest = rest.partition("{")
        inner, _, rest = rest.partition("}")
        text += f"{before}{{{len(children)}}}"
        children.append(child(inner))
    return Expression(text + rest, kind, tuple(children))
