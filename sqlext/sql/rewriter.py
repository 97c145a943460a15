"""Runs named batches of rewrite rules over a query, Catalyst style, and notes every rule that changed it.

A rule is a function that takes a query's tree, may change it, and returns it; its name is the function's name. A query that
it cannot take it refuses with a `RefusalError`.
Source: Spark's `RuleExecutor`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from sqlglot import exp

from sqlext.errors import RuleError, SqlextError
from sqlext.plan.job_graph import Firing
from sqlext.sql.dialect import position_of, to_sql

logger = logging.getLogger(__name__)

Rule = Callable[[exp.Query], exp.Query]


class RefusalError(Exception):
    """A rule's no. A rule sees a tree and not its text, so the rewriter gives the error its position.

    Args:
        error: what the user gets.
        node: the part of the query that it is about.
    """

    def __init__(self, error: SqlextError, node: exp.Expr) -> None:
        super().__init__(str(error))
        self.error = error
        self.node = node


@dataclass(frozen=True)
class Once:
    """Run each rule of the batch one time."""

    max_iterations: int = 1


@dataclass(frozen=True)
class FixedPoint:
    """Run the batch until nothing changes; not converging within `max_iterations` is an error."""

    max_iterations: int = 25


class Scope(Enum):
    """What a batch sees.

    QUERY: the whole query. RELATIONS: the same; what stands before these rules is the query as the user wrote it, with whose
    types those of the columns are compared. AGGREGATE: what is left when streaming aggregates have been taken out of the query
    above them: each of them, and that query, as a query of its own; the whole query when nothing is above.
    They run in this order.
    """

    QUERY = "query"
    RELATIONS = "relations"
    AGGREGATE = "aggregate"


@dataclass(frozen=True)
class Batch:
    """Rules that run together, in this order."""

    name: str
    strategy: Once | FixedPoint
    rules: tuple[Rule, ...] = ()
    scope: Scope = Scope.QUERY


def rewrite(tree: exp.Query, source: str, batches: Sequence[Batch]) -> tuple[exp.Query, tuple[Firing, ...]]:
    """Run `batches` over a copy of `tree`.

    Args:
        tree: a query parsed from `source`.
        source: the statement's text, for the parts that stay as written.
        batches: in order.

    Returns:
        The rewritten tree, and what fired, in order.

    Raises:
        RuleError: a rule failed, or a batch did not converge; the message names the rule.
        SqlextError: a rule refused the query.
    """
    firings: list[Firing] = []
    for batch in batches:
        tree = _run(batch, tree, source, firings)
    return tree, tuple(firings)


def _run(batch: Batch, tree: exp.Query, source: str, firings: list[Firing]) -> exp.Query:
    fired: list[str] = []
    for _ in range(batch.strategy.max_iterations):
        fired = []
        for rule in batch.rules:
            after = _apply(rule, tree, source, batch.name)
            if after != tree:
                fired.append(rule.__name__)
                firings.append(Firing(batch.name, rule.__name__, to_sql(tree, source), to_sql(after, source)))
                logger.debug("rule %s/%s:\n  %s\n  %s", batch.name, rule.__name__, firings[-1].before, firings[-1].after)
                tree = after
        if not fired:
            break
    if fired and isinstance(batch.strategy, FixedPoint):
        raise RuleError(
            f"The rules of batch `{batch.name}` do not converge: after {batch.strategy.max_iterations} rounds "
            f"{', '.join(f'`{name}`' for name in fired)} still changes the query. A rule must leave its own output alone."
        )
    return tree


def _apply(rule: Rule, tree: exp.Query, source: str, batch: str) -> exp.Query:
    try:
        after = rule(tree.copy())
    except RefusalError as refusal:
        raise type(refusal.error)(refusal.error.message, position_of(refusal.node, source)) from None
    except SqlextError:
        raise
    except Exception as error:  # a user's rule may raise anything; the message names the rule
        raise RuleError(f"Rule `{rule.__name__}` of batch `{batch}` failed: {type(error).__name__}: {error}") from error
    if not isinstance(after, exp.Query):
        raise RuleError(f"Rule `{rule.__name__}` of batch `{batch}` returned {after!r}; a rule returns the query's tree.")
    return after
