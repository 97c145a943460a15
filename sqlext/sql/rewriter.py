"""Runs named batches of rewrite rules over a query, Catalyst style, and records every rule that changed it.

A rule is a function that takes a query's tree, may change it, and returns it; its name is the function's name. It refuses a
query that it cannot handle with a `RefusalError`.
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
from sqlext.sql.dialect import to_sql
from sqlext.sql.source_text import position_of

logger = logging.getLogger(__name__)

Rule = Callable[[exp.Query], exp.Query]


class RefusalError(Exception):
    """A rule's refusal of a query. A rule sees only the tree, not its text, so the rewriter adds the position to the error.

    Args:
        error: the error for the user.
        node: the part of the query that the error is about.
    """

    def __init__(self, error: SqlextError, node: exp.Expr) -> None:
        super().__init__(str(error))
        self.error = error
        self.node = node


@dataclass(frozen=True)
class Once:
    """The strategy that runs each rule of the batch once."""

    max_iterations: int = 1


@dataclass(frozen=True)
class FixedPoint:
    """The strategy that runs the batch until nothing changes; not converging within `max_iterations` is an error."""

    max_iterations: int = 25


class Scope(Enum):
    """The queries that a batch is applied to; batches run in the order of their scopes.

    QUERY: the whole query. RELATIONS: the whole query as well; the query before these rules counts as the one that the user
    wrote, and the columns' types are compared with its types. AGGREGATE: the parts after the streaming aggregates have been split
    from the query above them: each aggregate and that query, separately; the whole query when there is none above.
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
        batches: the batches, in the order in which they run.

    Returns:
        The rewritten tree, and the rules that fired, in order.

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
            f"{', '.join(f'`{name}`' for name in fired)} still changed the query. A rule must leave its own output unchanged."
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
        raise RuleError(f"Rule `{rule.__name__}` of batch `{batch}` returned {after!r}. A rule must return the query's tree.")
    return after
