"""Slow test files take turns, of about the same length if not of one file. A turn takes no file that is fast or always runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import turns

pytest_plugins = ["pytester"]


def test_turns_are_of_about_the_same_length() -> None:
    found = turns.turns()
    lengths = Counter[int]()
    for test, seconds in turns.recorded().items():
        if (file := turns.file_of(test)) in found:
            lengths[found[file]] += round(seconds)
    assert not any(file.startswith(turns._ALWAYS) for file in found)
    assert lengths.keys() == set(range(turns.TURNS))
    files = Counter(found.values())
    assert max(seconds for turn, seconds in lengths.items() if files[turn] > 1) < 1.2 * min(lengths.values())


def test_a_commit_has_one_turn() -> None:
    assert turns.turn_of_commit() == turns.turn_of_commit() in range(turns.TURNS)


def test_a_turn_leaves_out_the_slow_files_of_others_and_a_record_is_written(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = "def test_one(): pass\ndef test_two(): pass\n"
    pytester.makepyfile(test_fast=tests, test_slow=tests, test_slower=tests)
    record = tmp_path / "durations.tsv"
    monkeypatch.setattr(turns, "RECORD", record)
    turns.write({"test_slow.py::test_one": 20.0, "test_slower.py::test_one": 15.2, "test_slower.py::test_two": 15.0})
    assert record.read_text().splitlines()[1:] == [
        "20\ttest_slow.py::test_one",
        "15\ttest_slower.py::test_one",
        "15\ttest_slower.py::test_two",
    ]

    ran = [_files(pytester, turns.Turn(turn)) for turn in range(3)]  # the longest has the first turn
    assert ran == [{"test_fast", "test_slower"}, {"test_fast", "test_slow"}, {"test_fast"}]

    monkeypatch.setattr(turns, "_RECORDED", 0.0)
    turns.write({"test_other.py::test_one": 9.0, "test_fast.py::test_gone": 8.0})  # the first is of a file that does not run
    pytester.inline_run(plugins=[turns.Recorder()])
    assert len(turns.recorded()) == 7
    assert "test_fast.py::test_gone" not in turns.recorded()


def test_a_slow_file_that_no_record_has_is_named(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytester.makepyfile(test_new="def test_one(): pass\n", test_known="def test_one(): pass\n")
    monkeypatch.setattr(turns, "RECORD", tmp_path / "durations.tsv")
    turns.write({"test_known.py::test_one": 20.0})
    pytester.inline_run(plugins=[turns.Turn(0)])
    assert "takes no turns" not in capsys.readouterr().out

    monkeypatch.setattr(turns, "_RECORDED", 0.0)
    monkeypatch.setattr(turns, "SLOW", 0.0)
    pytester.inline_run(plugins=[turns.Turn(0)])
    named = [line for line in capsys.readouterr().out.splitlines() if "takes no turns" in line]
    assert named == ["test_new.py takes no turns, and took 0 seconds: python -m pytest -n 3 --record test_new.py"]


def _files(pytester: pytest.Pytester, plugin: object) -> set[str]:
    found = pytester.inline_run(plugins=[plugin]).getcalls("pytest_runtest_call")
    assert len(found) % 2 == 0
    return {call.item.path.stem for call in found}
