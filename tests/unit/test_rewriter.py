"""The rewriter: batches in order, Once and FixedPoint, the trace, and errors that name the rule; rules of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from sqlglot import exp

from sqlext.errors import NameTakenError, RuleError, UnsupportedError
from sqlext.plan.job_graph import Firing
from sqlext.planner import rule_book
from sqlext.planner.rule_book import add_rule, remove_rule, rules_in_force
from sqlext.rules import BATCHES
from sqlext.sql.dialect import parse_query, to_sql
from sqlext.sql.rewriter import Batch, FixedPoint, Once, Rule, rewrite

QUERY = "SELECT a FROM t WHERE  b = 1L"


def rewritten(query: str, *batches: Batch) -> tuple[str, list[tuple[str, str]]]:
    """The text after all batches, and what fired."""
    tree, firings = rewrite(parse_query(query), query, batches)
    return to_sql(tree, query), [(firing.batch, firing.rule) for firing in firings]


def renaming(old: str, new: str) -> Rule:
    """A rule that turns one column into another, called `old_to_new`."""

    def rule(query: exp.Query) -> exp.Query:
        for column in query.find_all(exp.Column):
            if column.name == old:
                column.this.replace(exp.to_identifier(new))
        return query

    rule.__name__ = f"{old}_to_{new}"
    return rule


def do_nothing(query: exp.Query) -> exp.Query:
    return query


def add_a_column(query: exp.Query) -> exp.Query:
    query.append("expressions", exp.Literal.number(len(query.expressions)))
    return query


def add_columns_up_to_four(query: exp.Query) -> exp.Query:
    return add_a_column(query) if len(query.expressions) < 4 else query


# Batches


def test_without_batches_nothing_changes() -> None:
    assert rewritten(QUERY) == (QUERY, [])


def test_an_empty_batch_changes_nothing() -> None:
    assert rewritten(QUERY, Batch("none", Once()), Batch("none either", FixedPoint())) == (QUERY, [])


def test_a_rule_that_changes_nothing_does_not_fire() -> None:
    assert rewritten(QUERY, Batch("idle", FixedPoint(), (do_nothing,))) == (QUERY, [])


def test_once_runs_each_rule_one_time() -> None:
    assert rewritten(QUERY, Batch("grow", Once(), (add_a_column,))) == (
        "SELECT a, 1 FROM t WHERE b = 1L",
        [("grow", "add_a_column")],
    )


def test_a_fixed_point_runs_until_nothing_changes() -> None:
    assert rewritten(QUERY, Batch("grow", FixedPoint(), (add_columns_up_to_four,))) == (
        "SELECT a, 1, 2, 3 FROM t WHERE b = 1L",
        [("grow", "add_columns_up_to_four")] * 3,
    )


def test_rules_run_in_order_and_see_what_those_before_them_made() -> None:
    rules = (renaming("b", "c"), renaming("a", "b"))
    assert rewritten(QUERY, Batch("names", Once(), rules)) == (
        "SELECT b FROM t WHERE c = 1L",
        [("names", "b_to_c"), ("names", "a_to_b")],
    )


def test_a_fixed_point_goes_round_until_a_late_rule_has_fed_an_early_one() -> None:
    rules = (renaming("c", "d"), renaming("b", "c"))
    assert rewritten(QUERY, Batch("names", FixedPoint(), rules)) == (
        "SELECT a FROM t WHERE d = 1L",
        [("names", "b_to_c"), ("names", "c_to_d")],
    )
    assert rewritten(QUERY, Batch("names", Once(), rules))[0] == "SELECT a FROM t WHERE c = 1L"


def test_batches_run_in_order_each_to_its_end() -> None:
    assert rewritten(
        QUERY, Batch("one", FixedPoint(), (renaming("b", "c"),)), Batch("two", Once(), (renaming("c", "d"), renaming("d", "e")))
    ) == ("SELECT a FROM t WHERE e = 1L", [("one", "b_to_c"), ("two", "c_to_d"), ("two", "d_to_e")])


def test_the_trace_tells_the_sql_before_and_after() -> None:
    _, firings = rewrite(parse_query(QUERY), QUERY, [Batch("names", Once(), (renaming("b", "c"), add_a_column))])
    assert firings == (
        Firing("names", "b_to_c", QUERY, "SELECT a FROM t WHERE c = 1L"),
        Firing("names", "add_a_column", "SELECT a FROM t WHERE c = 1L", "SELECT a, 1 FROM t WHERE c = 1L"),
    )


def test_the_tree_that_was_given_stays_as_it_is() -> None:
    tree = parse_query(QUERY)
    after, _ = rewrite(tree, QUERY, [Batch("grow", Once(), (add_a_column,))])
    assert tree == parse_query(QUERY)
    assert after != tree
    assert to_sql(tree, QUERY) == QUERY


def test_a_rule_may_return_another_tree() -> None:
    def replace_all(query: exp.Query) -> exp.Query:
        return parse_query("SELECT 1")

    assert rewritten(QUERY, Batch("new", Once(), (replace_all,)))[1] == [("new", "replace_all")]


def test_every_rule_that_fired_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "sqlext.sql.rewriter"):
        rewritten(QUERY, Batch("names", Once(), (do_nothing, renaming("b", "c"))))
    assert [record.getMessage() for record in caplog.records] == [
        f"rule names/b_to_c:\n  {QUERY}\n  SELECT a FROM t WHERE c = 1L"
    ]


# Rules that go wrong


def test_rules_that_do_not_converge_are_named() -> None:
    rules = (do_nothing, add_a_column, renaming("a", "b"))
    with pytest.raises(RuleError) as caught:
        rewritten(QUERY, Batch("grow", FixedPoint(3), rules))
    assert caught.value.message == (
        "The rules of batch `grow` do not converge: after 3 rounds `add_a_column` still changed the query. A rule must "
        "leave its own output unchanged."
    )


def test_rules_that_undo_each_other_are_all_named() -> None:
    with pytest.raises(RuleError, match="`a_to_b`, `b_to_a` still changed"):
        rewritten(QUERY, Batch("to and fro", FixedPoint(), (renaming("a", "b"), renaming("b", "a"))))


def test_converging_in_the_last_round_but_one_is_early_enough() -> None:
    batch = Batch("grow", FixedPoint(4), (add_columns_up_to_four,))
    assert rewritten(QUERY, batch)[1] == [("grow", "add_columns_up_to_four")] * 3
    with pytest.raises(RuleError, match="after 3 rounds"):
        rewritten(QUERY, Batch("grow", FixedPoint(3), (add_columns_up_to_four,)))


def test_once_need_not_converge() -> None:
    assert rewritten(QUERY, Batch("grow", Once(), (add_a_column, add_a_column)))[1] == [("grow", "add_a_column")] * 2


def test_a_rule_that_raises_is_named_with_its_error() -> None:
    def broken(query: exp.Query) -> exp.Query:
        raise KeyError("where")

    with pytest.raises(RuleError) as caught:
        rewritten(QUERY, Batch("mine", Once(), (broken,)))
    assert caught.value.message == "Rule `broken` of batch `mine` failed: KeyError: 'where'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_rule_may_refuse_a_query_with_an_error_of_ours() -> None:
    def refusing(query: exp.Query) -> exp.Query:
        raise UnsupportedError("Not this one.")

    with pytest.raises(UnsupportedError, match="Not this one"):
        rewritten(QUERY, Batch("mine", Once(), (refusing,)))


@pytest.mark.parametrize("result", [None, "SELECT 1", exp.column("a")])
def test_a_rule_that_returns_no_query_is_named(result: Any) -> None:
    def forgetful(query: exp.Query) -> exp.Query:
        return cast(exp.Query, result)

    with pytest.raises(RuleError) as caught:
        rewritten(QUERY, Batch("mine", FixedPoint(), (forgetful,)))
    assert caught.value.message == (f"Rule `forgetful` of batch `mine` returned {result!r}. A rule must return the query's tree.")


# The user's own rules


@pytest.fixture(autouse=True)
def batches_as_they_were() -> Iterator[None]:
    before = rule_book._batches
    rule_book._batches = BATCHES
    yield
    rule_book._batches = before


def names(batch: str) -> list[str]:
    return [rule.__name__ for each in rules_in_force() if each.name == batch for rule in each.rules]


def test_our_own_rules_are_in_force_from_the_start() -> None:
    assert rules_in_force() == BATCHES
    assert names("user") == []


def test_a_users_rule_joins_the_user_batch_at_its_end() -> None:
    add_rule(do_nothing)
    add_rule(add_columns_up_to_four)
    assert names("user") == ["do_nothing", "add_columns_up_to_four"]
    assert [batch for batch in rules_in_force() if batch.name != "user"] == [b for b in BATCHES if b.name != "user"]
    assert rewritten(QUERY, *rules_in_force())[0] == "SELECT a, 1, 2, 3 FROM t WHERE b = 1L"


def test_a_users_rule_may_join_any_batch() -> None:
    ours = names("retractions")
    add_rule(do_nothing, "retractions")
    assert names("retractions") == [*ours, "do_nothing"]
    assert names("user") == []


def test_a_rule_is_taken_out_by_its_name() -> None:
    add_rule(do_nothing)
    remove_rule("do_nothing")
    assert rules_in_force() == BATCHES
    add_rule(do_nothing)
    assert names("user") == ["do_nothing"]


def test_taking_out_a_rule_that_is_not_there_is_no_error() -> None:
    remove_rule("unheard_of")
    assert rules_in_force() == BATCHES


@pytest.mark.parametrize("batch", ["user", "retractions"])
def test_a_name_is_registered_once(batch: str) -> None:
    add_rule(do_nothing)
    with pytest.raises(NameTakenError) as caught:
        add_rule(do_nothing, batch)
    assert caught.value.message == "A rule `do_nothing` is already registered. Give yours another name."
    assert names("user") == ["do_nothing"]


def test_the_name_of_one_of_our_rules_is_taken() -> None:
    with pytest.raises(NameTakenError, match="`having_to_column`"):
        add_rule(renamed("having_to_column"))


def renamed(name: str) -> Rule:
    def rule(query: exp.Query) -> exp.Query:
        return query

    rule.__name__ = name
    return rule


def test_an_unknown_batch_is_refused_with_those_there_are() -> None:
    with pytest.raises(RuleError) as caught:
        add_rule(do_nothing, "retraction")
    assert caught.value.message == (
        "There is no batch `retraction`. Did you mean `retractions`? The batches are options, user, relations, streaming "
        "aggregates, retractions."
    )
    assert rules_in_force() == BATCHES


@pytest.mark.parametrize("thing", [None, "do_nothing", type("Callable", (), {"__call__": do_nothing})()])
def test_what_is_no_named_function_is_refused(thing: Callable[..., Any]) -> None:
    with pytest.raises(RuleError) as caught:
        add_rule(thing)
    assert caught.value.message == (f"{thing!r} is not a rule. A rule is a named function from a query's tree to a query's tree.")
