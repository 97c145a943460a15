"""A log that is compacted: short to open, the same for whoever slept meanwhile, and never silently without its oldest events."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest

from sqlext.errors import SetupError
from sqlext.execution.coordination import snapshot_log
from sqlext.execution.coordination.event_log import EventLog
from sqlext.execution.coordination.snapshot_log import EVENTS_A_SNAPSHOT, SnapshotLog
from tests.unit.memory_folder import MemoryFolder


class Names:
    """A process that keeps a list of names in a log: a snapshot has all of them in one event."""

    def __init__(self, folder: MemoryFolder) -> None:
        self.log = SnapshotLog(folder)
        self.names: list[str] = []

    def read(self) -> list[str]:
        news = self.log.read_new()
        if news.is_anew:
            self.names = []
        self._take(news.texts)
        return self.names

    def add(self, name: str) -> None:
        self.read()
        while not self.log.append(name):
            self.read()
        self._take([name])
        self.log.compact(lambda: [" ".join(self.names)])

    def _take(self, texts: Sequence[str]) -> None:
        self.names += [name for text in texts for name in text.split()]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a snapshot stands for is deleted at once."""
    monkeypatch.setattr(snapshot_log, "KEPT", timedelta(seconds=-1))


def filled(folder: MemoryFolder, count: int) -> Names:
    names = Names(folder)
    for number in range(count):
        names.add(str(number))
    return names


def test_a_long_log_is_opened_by_its_newest_snapshot() -> None:
    folder = MemoryFolder()
    filled(folder, 3 * EVENTS_A_SNAPSHOT + 7)
    folder.requests.clear()
    assert Names(folder).read() == [str(number) for number in range(3 * EVENTS_A_SNAPSHOT + 7)]
    read = [each for each in folder.requests if each.startswith("read")]
    assert len(read) == 1 + 7
    assert len(folder.requests) <= 10


def test_events_stay_for_a_day_after_their_snapshot() -> None:
    folder = MemoryFolder()
    filled(folder, 3 * EVENTS_A_SNAPSHOT)
    assert len(folder.files) == 3 * EVENTS_A_SNAPSHOT + 3


@pytest.mark.usefixtures("at_once")
def test_what_older_snapshots_stand_for_is_deleted() -> None:
    folder = MemoryFolder()
    filled(folder, 3 * EVENTS_A_SNAPSHOT)
    assert min(folder.files) == f"mem:/r/{2 * EVENTS_A_SNAPSHOT:020d}.snapshot.json"
    assert len(folder.files) == EVENTS_A_SNAPSHOT + 2
    assert Names(folder).read() == [str(number) for number in range(3 * EVENTS_A_SNAPSHOT)]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("known", [0, 1, EVENTS_A_SNAPSHOT, EVENTS_A_SNAPSHOT + 3])
def test_who_slept_while_the_log_was_compacted_sees_all(known: int) -> None:
    folder = MemoryFolder()
    filled(folder, known)
    sleeper = Names(folder)
    assert len(sleeper.read()) == known
    other = Names(folder)
    for number in range(known, 5 * EVENTS_A_SNAPSHOT):
        other.add(str(number))
    assert sleeper.read() == other.names
    sleeper.add("mine")
    assert other.read()[-1] == "mine"


@pytest.mark.usefixtures("at_once")
def test_a_write_of_a_process_that_slept_since_its_last_look_does_not_count() -> None:
    """Its number is free again, as the file with it was deleted: it must not be believed to be written."""
    folder = MemoryFolder()
    filled(folder, 10)
    sleeper = Names(folder)
    sleeper.read()
    other = Names(folder)
    for number in range(10, 4 * EVENTS_A_SNAPSHOT):
        other.add(str(number))
    assert f"mem:/r/{11:020d}.json" not in folder.files
    assert not sleeper.log.append("stale")
    assert f"mem:/r/{11:020d}.json" not in folder.files
    sleeper.add("mine")
    assert other.read() == [*(str(number) for number in range(4 * EVENTS_A_SNAPSHOT)), "mine"]


def test_writers_at_once_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What snapshots stand for is deleted meanwhile."""
    monkeypatch.setattr(snapshot_log, "EVENTS_A_SNAPSHOT", 7)
    monkeypatch.setattr(snapshot_log, "KEPT", timedelta(seconds=0.3))
    folder = MemoryFolder(seconds=0.003)

    def write(whose: str) -> None:
        names = Names(folder)
        for number in range(60):
            names.add(f"{whose}{number}")

    writers = [threading.Thread(target=write, args=(whose,)) for whose in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert not folder.child(f"{1:020d}.json").exists()
    found = Names(folder).read()
    assert sorted(found) == sorted(f"{whose}{number}" for whose in "abc" for number in range(60))
    for whose in "abc":
        assert [each for each in found if each.startswith(whose)] == [f"{whose}{number}" for number in range(60)]


def test_a_torn_snapshot_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    folder = MemoryFolder()
    filled(folder, 2 * EVENTS_A_SNAPSHOT)
    folder.files[f"mem:/r/{2 * EVENTS_A_SNAPSHOT:020d}.snapshot.json"] = '{"version": 1, "at": "20'
    assert len(Names(folder).read()) == 2 * EVENTS_A_SNAPSHOT
    assert "cannot be read" in caplog.text


@pytest.mark.usefixtures("at_once")
def test_a_log_that_has_lost_its_beginning_is_refused() -> None:
    folder = MemoryFolder()
    filled(folder, 3 * EVENTS_A_SNAPSHOT + 1)
    for name in [name for name in folder.files if "snapshot" in name]:
        folder.files[name] = folder.files[name].replace('"version": 1', '"version": 99')
    with pytest.raises(SetupError, match=r"The log mem:/r has number 151, but no readable event 1: files are missing\."):
        Names(folder).read()


def test_a_snapshot_that_cannot_be_written_does_not_stop_events(caplog: pytest.LogCaptureFixture) -> None:
    folder = MemoryFolder()
    folder.unwritable = ".snapshot.json"
    filled(folder, EVENTS_A_SNAPSHOT + 2)
    assert "was not compacted" in caplog.text
    assert len(Names(folder).read()) == EVENTS_A_SNAPSHOT + 2


@pytest.mark.parametrize(("known", "failing"), [(0, 1), (0, 3), (0, 4), (2, 3), (2, 4)])
def test_events_that_cannot_be_read_now_are_read_later(known: int, failing: int) -> None:
    folder = MemoryFolder()
    filled(folder, known)
    names = Names(folder)
    names.read()
    other = Names(folder)
    for number in range(known, 4):
        other.add(str(number))
    folder.failing.add(f"{failing:020d}.json")
    with pytest.raises(SetupError, match=rf"The file mem:/r/{failing:020d}\.json cannot be read: connection reset\."):
        names.read()
    assert names.read() == ["0", "1", "2", "3"]


def test_an_event_that_cannot_be_read_after_a_snapshot_loses_nothing() -> None:
    folder = MemoryFolder()
    filled(folder, EVENTS_A_SNAPSHOT + 3)
    names = Names(folder)
    folder.failing.add(f"{EVENTS_A_SNAPSHOT + 2:020d}.json")
    with pytest.raises(SetupError, match="connection reset"):
        names.read()
    assert names.read() == [str(number) for number in range(EVENTS_A_SNAPSHOT + 3)]


def test_a_torn_event_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    folder = MemoryFolder()
    filled(folder, 3)
    folder.torn.add(f"{2:020d}.json")
    assert Names(folder).read() == ["0", "2"]
    assert "event skipped: The file mem:/r/00000000000000000002.json cannot be read: checksum error." in caplog.text


def test_a_log_without_snapshots_reads_events_again_that_could_not_be_read() -> None:
    folder = MemoryFolder()
    log = EventLog(folder)
    assert all(log.append(text) for text in "abc")
    other = EventLog(folder)
    folder.failing.add(f"{2:020d}.json")
    with pytest.raises(SetupError, match="connection reset"):
        other.read_new()
    assert (other.read_new(), other.count) == (["a", "b", "c"], 3)
    folder.torn.add(f"{1:020d}.json")
    assert EventLog(folder).read_new() == ["", "b", "c"]
