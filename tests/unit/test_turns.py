"""Slow tests take turns, of about the same length, and a turn takes none that is fast or always runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import turns

pytest_plugins = ["pytester"]


def test_every_slow_test_has_a_turn_and_turns_are_of_about_the_same_length() -> None:
    recorded = turns.recorded()
    found = turns.turns()
    assert found.keys() == {test for test in recorded if not test.startswith(turns._ALWAYS)}
    lengths = Counter[int]()
    for test, turn in found.items():
        lengths[turn] += round(recorded[test])
    assert lengths.keys() == set(range(turns.TURNS))
    assert max(lengths.values()) < 1.2 * min(lengths.values())


def test_a_commit_has_one_turn() -> None:
    assert turns.turn_of_commit() == turns.turn_of_commit() in range(turns.TURNS)


def test_a_turn_leaves_out_the_slow_tests_of_others_and_a_record_is_written(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pytester.makepyfile("def test_fast(): pass\ndef test_slow(): pass\ndef test_slower(): pass\n")
    record = tmp_path / "durations.tsv"
    monkeypatch.setattr(turns, "RECORD", record)
    turns.write({f"{path.name}::test_slow": 20.0, f"{path.name}::test_slower": 30.2})
    assert record.read_text().splitlines()[1:] == [f"30\t{path.name}::test_slower", f"20\t{path.name}::test_slow"]

    ran = [
        {item.name for item, _ in _ran(pytester, turns.Turn(turn))}  # the longest has the first turn
        for turn in range(3)
    ]
    assert ran == [{"test_fast", "test_slower"}, {"test_fast", "test_slow"}, {"test_fast"}]

    monkeypatch.setattr(turns, "SLOW", 0.0)
    pytester.inline_run(plugins=[turns.Recorder()])
    assert {test.partition("::")[2] for test in turns.recorded()} == {"test_fast", "test_slow", "test_slower"}


def _ran(pytester: pytest.Pytester, plugin: object) -> list[tuple[pytest.Item, object]]:
    found = pytester.inline_run(plugins=[plugin])
    return [(call.item, call) for call in found.getcalls("pytest_runtest_call")]
