"""Slow test files take turns: a run of the whole suite has one of `TURNS` turns, by the commit, and `--full` has all.

A file is slow whose tests took `SLOW` seconds together in the newest record, `tests/durations.tsv`; others run always. A file is
never divided: its tests may share a server, or build on one another. The turns are of about the same length, but one of a
single file may be longer. Whoever names files or tests gets what was named: turns are for `python -m pytest` alone.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

TURNS = 32
SLOW = 20.0
"""Seconds, with three processes side by side on two cores."""
RECORD = Path(__file__).with_name("durations.tsv")
_TITLE = "# Seconds of each test of three or more, with three processes side by side on two cores; see turns.py."
_RECORDED = 3.0
_DIVIDED = {
    "tests/differential/test_differential.py::test_queries_equal_batch": 6,
    "tests/integration/test_view_answers.py::": 16,
    "tests/integration/test_view_corners.py::": 16,
}
"""Tests of many cases that need nothing of one another: a run has one of so many parts of them."""
_ALWAYS = ("tests/differential/", "tests/unit/")
"""The tests that find most of what any other finds."""


def turn_of_commit() -> int:
    """Return the turn of the commit that is checked out, so that it has the same one wherever it is run; 0 without git."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=RECORD.parent, capture_output=True, text=True, timeout=60, check=False
    )
    return int(found.stdout.strip() or "0", 16) % TURNS


def turns() -> dict[str, int]:
    """Return the turn of each slow file: the longest first, each to the shortest turn so far."""
    lengths = [0.0] * TURNS
    found: dict[str, int] = {}
    for file, seconds in sorted(lengths_of_files(recorded()).items(), key=lambda each: (-each[1], each[0])):
        if seconds >= SLOW:
            found[file] = lengths.index(min(lengths))
            lengths[found[file]] += seconds
    return found


def lengths_of_files(tests: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each file that may take turns, of those of its tests."""
    files: defaultdict[str, float] = defaultdict(float)
    for test, seconds in tests.items():
        if not test.startswith((*_DIVIDED, *_ALWAYS)):
            files[file_of(test)] += seconds
    return files


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def recorded() -> dict[str, float]:
    """Return the seconds that each recorded test took."""
    lines = (line.split("\t") for line in RECORD.read_text().splitlines() if not line.startswith("#"))
    return {test: float(seconds) for seconds, test in lines}


class _Timed:
    """What a plugin knows of how long tests take."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def long_ones(self) -> dict[str, float]:
        """Return the seconds of each test that a record would have."""
        return {test: seconds for test, seconds in self._seconds.items() if seconds >= _RECORDED}


class Turn(_Timed):
    """The plugin that leaves out the slow files of the other turns, and names those that no record has."""

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.turn = turn

    def pytest_report_header(self) -> str:
        return f"slow files: turn {self.turn} of 0 to {TURNS - 1}; by default the commit's, --turn N takes another, --full all"

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        taken = turns()
        ours: list[pytest.Item] = []
        others: list[pytest.Item] = []
        divided: dict[str, int] = {}
        for item in items:
            case = next((each for each in _DIVIDED if item.nodeid.startswith(each)), None)
            if case is None:
                is_ours = taken.get(file_of(item.nodeid), self.turn) == self.turn
            else:
                divided[case] = (divided.get(case, -1) + 1) % _DIVIDED[case]
                is_ours = divided[case] == self.turn % _DIVIDED[case]
            (ours if is_ours else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = ours

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A file that is new runs always, until it is recorded: nobody would see why runs get longer."""
        taken = turns()
        for file, seconds in sorted(lengths_of_files(self.long_ones()).items()):
            if seconds >= 2 * SLOW and file not in taken:
                said = f"{file} takes no turns, and took {seconds:.0f} seconds: python -m pytest -n 3 --record {file}"
                terminalreporter.write_line(said)


class Recorder(_Timed):
    """The plugin that writes `tests/durations.tsv`: `python -m pytest -n 3 --full --record`.

    Where files are named, their tests alone are recorded anew.
    """

    def pytest_sessionfinish(self) -> None:
        files = {file_of(test) for test in self._seconds}
        others = {test: seconds for test, seconds in recorded().items() if file_of(test) not in files}
        write(others | self.long_ones())


def write(seconds: dict[str, float]) -> None:
    """Write the record, the slowest test first."""
    slowest = sorted(seconds.items(), key=lambda found: (-found[1], found[0]))
    lines = [_TITLE, *(f"{each:.0f}\t{test}" for test, each in slowest)]
    RECORD.write_text("\n".join(lines) + "\n")
