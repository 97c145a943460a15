"""Generated queries as flows in both state backends, and as END OF STREAM, equal Spark's batch query: `--queries N --seed S`."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from tests.differential import data
from tests.differential.generator import Generator
from tests.differential.harness import BACKENDS, WAYS, Group, Outcome, Scenario, Verdict, arena, scenario
from tests.differential.shrink import shrink
from tests.differential.tree import Form, Query
from tests.integration.workshop import Workshop

_A_GROUP = 10
_IN_CI = 60
_COMMITS = (3, 6)
_SECONDS_TO_SHRINK = 600.0
_MOST_REFUSED = 0.4
_MOST_NOT_IN_BATCH = 0.3
_TALLY: Counter[str] = Counter()
"""Verdicts, and refusals by their reason."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "group" in metafunc.fixturenames:
        count = -(-int(metafunc.config.getoption("--queries")) // _A_GROUP)
        first, _, last = str(metafunc.config.getoption("--groups")).partition("-")
        metafunc.parametrize("group", range(int(first or 0), min(count, int(last or first or count) + 1)))


@pytest.mark.timeout(1800)
def test_queries_equal_batch(spark: SparkSession, pytestconfig: pytest.Config, group: int) -> None:
    """Every query of the group, in every way, after every commit; between commits the process dies, or the flows stop.

    In CI the two backends take turns from group to group.
    """
    sql = Workshop(spark)
    is_short = pytestconfig.getoption("--queries") <= _IN_CI
    random_ = random.Random(f"{pytestconfig.getoption('--seed')}:{group}")
    rows = data.commits(random_, 3 if is_short else random_.randint(*_COMMITS))
    ways = (BACKENDS[group % 2], WAYS[-1]) if is_short else WAYS
    around = scenario(random_, rows, ways)
    generator = Generator(random_)
    with arena(sql, around):
        outcomes = Group(sql, [generator.query() for _ in range(_A_GROUP)], around).run()
        _count(outcomes)
        failures = [outcome for outcome in outcomes if outcome.is_failure]
        for failure in failures:
            print(f"{failure.way}: {failure.verdict.value}: {failure.query.render(form_of(failure.way))}\n{failure.detail}\n")
        smallest = ""
        if failures:
            condition = around.dropping_for(outcomes.index(failures[0]) // len(around.ways))
            smallest = _smallest(sql, failures[0], replace(around, dropping=(condition,)))
    assert not failures, f"{len(failures)} of {len(outcomes)} failed, see above; the first as small as it gets:\n{smallest}"


def test_the_share_refused_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what was refused by reason; run after the groups. Few queries are none that Spark runs as a batch."""
    whole = sum(_TALLY[verdict.value] for verdict in Verdict)
    counted = sum(_TALLY[verdict.value] for verdict in Verdict if verdict is not Verdict.NOT_IN_BATCH)
    with capsys.disabled():
        for what, times in _TALLY.most_common():
            print(f"\n{times:6} {what}", end="")
        print()
    assert counted == 0 or _TALLY[Verdict.REFUSED.value] / counted < _MOST_REFUSED
    assert whole == 0 or _TALLY[Verdict.NOT_IN_BATCH.value] / whole < _MOST_NOT_IN_BATCH


def _count(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        _TALLY[outcome.verdict.value] += 1
        if outcome.verdict is Verdict.REFUSED:
            _TALLY[f"refused, {outcome.way}: {outcome.reason}"] += 1


def _smallest(sql: Workshop, failure: Outcome, around: Scenario) -> str:
    """The minimal case of a failure: the query, the rows of the commits, what came and what should have come."""
    alone = replace(around, ways=(failure.way,))
    until = time.monotonic() + _SECONDS_TO_SHRINK
    last = failure

    def first_failing(queries: Sequence[Query]) -> Query | None:
        nonlocal last
        again = Group(sql, queries, alone).run() if time.monotonic() < until else []
        found = next((each for each in again if _is_same_failure(each, failure)), None)
        last = found or last
        return found.query if found else None

    shrink(failure.query, first_failing, rounds=30, at_once=8)
    return describe(last, around)


def describe(outcome: Outcome, around: Scenario) -> str:
    """All that it takes to see a failure by hand."""
    query = f"{outcome.way}: {outcome.query.render(form_of(outcome.way))}"
    query += f" -- with the constraint {around.dropping[0]}, DROP ROW" if around.dropping[0] else ""
    settings = [f"SET {key} = {value}" for key, value in around.settings.items()]
    steps = [*settings, data.CREATE, data.CREATE_DIM, data.INSERT_DIM, around.commits.insert(0), query]
    for at in range(len(around.commits.rows)):
        compacted = around.compacted_before(at)
        steps += [around.restarts[at], f"OPTIMIZE {compacted}" if compacted else "", around.commits.insert(at)] if at else []
        steps += ["WAIT FLOW"] if around.looks[at] else []
    return "\n".join([f"{outcome.way}: {outcome.verdict.value}", *(f"{step};" for step in steps if step), outcome.detail])


def form_of(way: str) -> Form:
    return Form.FLOW if way in BACKENDS else Form.END


def _is_same_failure(one: Outcome, other: Outcome) -> bool:
    if one.verdict is not other.verdict:
        return False
    return one.verdict is Verdict.DIFFERENT or one.reason[:60] == other.reason[:60]
