"""A table's part in the plan of a query that is refreshed: its rows at two versions, and the changes between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Delta:
    """Rows with weights.

    Attributes:
        plan: a plan with all attributes of the node, and more.
        weight: the attribute with the weights.
    """

    plan: Any
    weight: Any


@dataclass(frozen=True)
class Leaf:
    """A table's part in a query.

    Attributes:
        new: its rows, with the leaf's attributes.
        old: returns those of the old version, whose files may be gone: most refreshes do not need them.
        delta: its changes; None: there are none.
        size: of the table, in bytes.
        table: the table's name.
        columns: the names of those columns that the query uses.
    """

    new: Any
    old: Callable[[], Any]
    delta: Delta | None
    size: int = 0
    table: str = ""
    columns: frozenset[str] = frozenset()
