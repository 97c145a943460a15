"""Generated queries as flows in both state backends, and as END OF STREAM, equal Spark's batch query: `--queries N --seed S`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from tests.differential import data
from tests.differential.generator import Generator
from tests.differential.harness import Group, Outcome, Scenario, Verdict, arena, scenario
from tests.differential.shrink import shrink
from tests.differential.tree import Form, Query
from tests.integration.workshop import Workshop

_A_GROUP = 10
_COMMITS = (3, 6)
_MOST_REFUSED = 0.4
_TALLY: Counter[str] = Counter()
"""Verdicts, and refusals by their reason."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "group" in metafunc.fixturenames:
        count = -(-int(metafunc.config.getoption("--queries")) // _A_GROUP)
        metafunc.parametrize("group", range(count))


@pytest.mark.timeout(1800)
def test_queries_equal_batch(spark: SparkSession, pytestconfig: pytest.Config, group: int) -> None:
    """Every query of the group, in every way, after every commit; between commits the process dies, or the flows stop."""
    sql = Workshop(spark)
    random_ = random.Random(f"{pytestconfig.getoption('--seed')}:{group}")
    count = 3 if pytestconfig.getoption("--queries") <= 60 else random_.randint(*_COMMITS)
    around = scenario(random_, data.commits(random_, count))
    generator = Generator(random_)
    with arena(sql):
        outcomes = Group(sql, [generator.query() for _ in range(_A_GROUP)], around).run()
        _count(outcomes)
        failures = [outcome for outcome in outcomes if outcome.is_failure]
        shown = [_report(sql, outcome, around) for outcome in failures[:3]]
    assert not failures, "\n\n".join([f"{len(failures)} of {len(outcomes)} failed", *shown])


def test_the_share_refused_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what was refused by reason; run after the groups."""
    counted = sum(_TALLY[verdict.value] for verdict in Verdict if verdict is not Verdict.NOT_IN_BATCH)
    with capsys.disabled():
        for what, times in _TALLY.most_common():
            print(f"\n{times:6} {what}", end="")
        print()
    assert counted == 0 or _TALLY[Verdict.REFUSED.value] / counted < _MOST_REFUSED


def _count(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        _TALLY[outcome.verdict.value] += 1
        if outcome.verdict is Verdict.REFUSED:
            _TALLY[f"refused, {outcome.way}: {outcome.reason}"] += 1


def _report(sql: Workshop, outcome: Outcome, around: Scenario) -> str:
    """The minimal case of a failure: the query, the rows of the commits, what came and what should have come."""
    alone = replace(around, ways=(outcome.way,))

    def first_failing(queries: Sequence[Query]) -> Query | None:
        again = Group(sql, queries, alone).run()
        return next((each.query for each in again if _is_same_failure(each, outcome)), None)

    query = shrink(outcome.query, first_failing, rounds=12, at_once=12)
    last = next((each for each in Group(sql, [query], alone).run() if each.is_failure), outcome)
    return describe(last, around)


def describe(outcome: Outcome, around: Scenario) -> str:
    """All that it takes to see a failure by hand."""
    form = Form.FLOW if outcome.way in ("rocksdb", "delta") else Form.END
    steps = [
        data.CREATE,
        data.CREATE_DIM,
        data.INSERT_DIM,
        around.commits.insert(0),
        f"{outcome.way}: {outcome.query.render(form)}",
    ]
    for at in range(1, len(around.commits.rows)):
        steps += [around.restarts[at], around.commits.insert(at)]
    return "\n".join([f"{outcome.way}: {outcome.verdict.value}", *(f"{step};" for step in steps if step), outcome.detail])


def _is_same_failure(one: Outcome, other: Outcome) -> bool:
    if one.verdict is not other.verdict:
        return False
    return one.verdict is Verdict.DIFFERENT or one.reason[:60] == other.reason[:60]
