"""When failed flows are tried again, by a clock that the test advances; and which errors may pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.errors import (
    FlowError,
    NotFoundError,
    SchemaError,
    SetupError,
    SqlextError,
    UnsupportedError,
    WaitTimeoutError,
)
from sqlext.execution.flows import faults, succession
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowState, find, fold
from sqlext.execution.flows.retries import MOST_PAUSE, Retries
from sqlext.testing import HandClock
from tests.unit.test_spec_registry import SPEC


def test_each_pause_is_twice_as_long_up_to_a_limit() -> None:
    clock = HandClock()
    retries = Retries(clock)
    pauses = []
    for _ in range(9):
        retry = retries.plan(SPEC, "the broker is gone")
        assert retry.at - clock.now() == retries.planned()["f-1"].at - clock.now()
        pauses.append((retry.at - clock.now()).total_seconds())
        clock.advance(pauses[-1] - 1)
        assert retries.take_due() == []
        clock.advance(1)
        assert retries.take_due() == [retry]
        assert retries.take_due() == []
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_flow_that_ran_for_long_begins_anew() -> None:
    clock = HandClock()
    retries = Retries(clock)
    assert [retries.plan(SPEC, "").attempt for _ in range(3)] == [1, 2, 3]
    retries.note_running("f-1")
    assert retries.planned() == {}
    clock.advance(MOST_PAUSE.total_seconds())
    assert retries.plan(SPEC, "").attempt == 1


def test_a_start_that_hangs_and_fails_is_no_run() -> None:
    clock = HandClock()
    retries = Retries(clock)
    pauses = []
    for _ in range(4):
        retry = retries.plan(SPEC, "the broker does not answer")
        pauses.append((retry.at - clock.now()).total_seconds())
        clock.advance(pauses[-1])
        assert retries.take_due() == [retry]
        clock.advance(2 * MOST_PAUSE.total_seconds())  # it hangs
    assert pauses == [5, 10, 20, 40]


def test_a_flow_that_comes_back_only_for_a_moment_goes_on_counting() -> None:
    clock = HandClock()
    retries = Retries(clock)
    for attempt in (1, 2, 3):
        assert retries.plan(SPEC, "").attempt == attempt
        clock.advance(MOST_PAUSE.total_seconds())
        retries.take_due()
        retries.note_running("f-1")
        clock.advance(MOST_PAUSE.total_seconds() - 1)


def test_a_flow_that_was_stopped_is_tried_no_more() -> None:
    clock = HandClock()
    retries = Retries(clock)
    retries.plan(SPEC, "")
    retries.plan(replace(SPEC, id="f-2"), "")
    retries.drop("f-1")
    clock.advance(5)
    assert [retry.spec.id for retry in retries.take_due()] == ["f-2"]


def test_the_registry_keeps_error_and_next_try() -> None:
    reserved = FlowEvent("f-1", EventKind.RESERVED, spec=SPEC.to_json())
    waiting = FlowEvent("f-1", EventKind.RETRYING, epoch=1, detail="gone", next_try="2026-01-01T00:00:05+00:00")
    (record,) = fold([reserved, FlowEvent("f-1", EventKind.STARTED, epoch=1), waiting]).values()
    assert (record.state, record.error, record.is_active) == (FlowState.RETRYING, "gone", True)
    assert record.next_try is not None
    assert record.next_try.isoformat() == "2026-01-01T00:00:05+00:00"
    (record,) = fold([reserved, waiting, FlowEvent("f-1", EventKind.STARTED, epoch=2)]).values()
    assert (record.state, record.error, record.next_try) == (FlowState.RUNNING, "", None)
    later = FlowEvent("f-1", EventKind.STARTED, epoch=2)
    assert fold([reserved, later, waiting])["f-1"].state is FlowState.RUNNING, "an old driver's word counts no more"


@pytest.mark.parametrize(
    ("kinds", "is_half_made"),
    [
        ([], True),
        ([EventKind.STARTED], False),
        ([EventKind.STARTED, EventKind.RETRYING], True),
        ([EventKind.STARTED, EventKind.SUCCEEDED, EventKind.RETRYING], False),
        ([EventKind.STARTED, EventKind.SUCCEEDED, EventKind.STOPPED, EventKind.STARTED, EventKind.FAILED], False),
    ],
)
def test_a_successor_that_has_run_is_not_undone(kinds: list[EventKind], is_half_made: bool) -> None:
    """The old flow may be on record still, if it could not be forgotten."""
    old = replace(SPEC, full_name=SPEC.target)
    successor = replace(old, id="f-2", replaces="f-1")
    events = [FlowEvent("f-1", EventKind.RESERVED, spec=old.to_json()), FlowEvent("f-1", EventKind.STARTED, epoch=1)]
    events.append(FlowEvent("f-2", EventKind.RESERVED, spec=successor.to_json()))
    records = fold([*events, *(FlowEvent("f-2", kind, epoch=1) for kind in kinds)])
    assert succession.is_half_made(records["f-2"], records) is is_half_made
    has_succeeded = EventKind.SUCCEEDED in kinds
    assert find(records, SPEC.target).spec.id == ("f-2" if has_succeeded else "f-1"), "the one that counts is found"


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (OSError("no route to host"), True),
        (TimeoutError(), True),
        (ConnectionRefusedError(), True),
        (SetupError("the storage cannot be read"), True),
        (WaitTimeoutError("a flush has not got on"), True),
        (caused(FlowError("a stage failed"), OSError("no route to host")), True),
        (FlowError("another driver"), False),
        (SchemaError("what is stored cannot be read"), False),
        (UnsupportedError("no stream"), False),
        (NotFoundError("the target was dropped"), False),
        (KeyError("a bug"), False),
        (ValueError("a bug"), False),
        (caused(NotFoundError("the target was dropped"), OSError("no route to host")), False),
    ],
)
def test_what_may_pass(error: SqlextError | Any, may_pass: bool) -> None:
    assert faults.may_pass(error) is may_pass


# Java's errors.

IO = ("java.io.IOException", "java.lang.Exception")
GONE = ("java.io.FileNotFoundException", *IO)
ANALYSIS = ("org.apache.spark.sql.AnalysisException", "java.lang.Exception")
HIVE = ("org.apache.hadoop.hive.ql.metadata.HiveException", "java.lang.Exception")
META = ("org.apache.hadoop.hive.metastore.api.MetaException", "org.apache.thrift.TException", *IO[1:])
CONFIG = ("org.apache.kafka.common.config.ConfigException", "org.apache.kafka.common.KafkaException")
SPARK = ("org.apache.spark.SparkException", "java.lang.Exception")
NO_METASTORE = "MetaException(message:Could not connect to meta store using any of the URIs provided.)"


@dataclass(frozen=True)
class JavaClass:
    """A class of Java's, as its name and the names of those above it."""

    names: tuple[str, ...]

    def getName(self) -> str:
        return self.names[0]

    def getSuperclass(self) -> JavaClass | None:
        return JavaClass(self.names[1:]) if self.names[1:] else None


class JavaError:
    """An error of Java's with its causes; each is a class and a message."""

    def __init__(self, chain: list[tuple[tuple[str, ...], str]]) -> None:
        self._chain = chain

    def getClass(self) -> JavaClass:
        return JavaClass(self._chain[0][0])

    def getMessage(self) -> str:
        return self._chain[0][1]

    def getCause(self) -> JavaError | None:
        return JavaError(self._chain[1:]) if self._chain[1:] else None


class JavaFailure(PySparkException):
    def __init__(self, *chain: tuple[tuple[str, ...], str]) -> None:
        super().__init__(chain[0][1])
        self.java_exception = JavaError(list(chain))


@pytest.mark.parametrize(
    ("chain", "may_pass"),
    [
        ([(SPARK, "Job aborted"), (IO, "Connection reset by peer")], True),
        ([(SPARK, "Job aborted"), (("java.lang.ArithmeticException",), "Division by zero")], False),
        ([(("java.net.ConnectException", "java.net.SocketException", *IO), "Connection refused")], True),
        ([(("java.net.UnknownHostException", *IO), "no-such-host")], True),
        ([(("java.nio.file.AccessDeniedException", *IO), "/data")], False),
        ([(SPARK, "Job aborted"), (("org.apache.hadoop.security.AccessControlException", *IO), "Permission denied")], False),
        ([(IO, "wrapped"), (("java.io.InvalidClassException", *IO), "serialVersionUID")], False),
        # Files that are gone stay gone; files that cannot be opened are another matter.
        ([(SPARK, "[FAILED_READ_FILE.FILE_NOT_EXIST]"), (GONE, "File file:/w/ev/part-0.parquet does not exist")], False),
        ([(("java.nio.file.NoSuchFileException", *IO), "/w/ev/part-0.parquet")], False),
        ([(GONE, "/tmp/blockmgr/temp (Too many open files)")], True),
        ([(GONE, "/w/t/part-1.parquet (No space left on device)")], True),
        # The metastore, whose trouble is often only a text in another error.
        ([(META, NO_METASTORE)], True),
        ([(HIVE, NO_METASTORE)], True),
        ([(HIVE, "Unable to instantiate org.apache.hadoop.hive.ql.metadata.SessionHiveMetaStoreClient")], True),
        ([(ANALYSIS, f"org.apache.hadoop.hive.ql.metadata.HiveException: {NO_METASTORE}")], True),
        ([(HIVE, "MetaException(message:org.apache.hadoop.security.AccessControlException: Permission denied: user=me)")], False),
        ([(HIVE, "Table not found")], False),
        ([(ANALYSIS, "cannot resolve `x`")], False),
        # The broker.
        ([(("org.apache.kafka.common.KafkaException",), "Failed"), (CONFIG, "No resolvable bootstrap urls given")], True),
        ([(CONFIG, "Invalid value nonsense for configuration auto.offset.reset")], False),
        ([(("org.apache.kafka.common.errors.TimeoutException", "org.apache.kafka.common.errors.RetriableException"), "")], True),
    ],
)  # fmt: skip
def test_which_of_javas_errors_may_pass(chain: list[tuple[tuple[str, ...], str]], may_pass: bool) -> None:
    assert faults.may_pass(JavaFailure(*chain)) is may_pass


@pytest.mark.parametrize(
    ("chain", "file"),
    [
        ([(SPARK, "Job aborted"), (GONE, "File file:/w/ev/part-0.parquet does not exist")], "file:/w/ev/part-0.parquet"),
        ([(GONE, "/w/ev/part-0.parquet (No such file or directory)")], "/w/ev/part-0.parquet"),
        ([(GONE, "No such file or directory: s3a://bucket/ev/part-0.parquet")], "s3a://bucket/ev/part-0.parquet"),
        ([(GONE, "/w/ev/part-0.parquet (Too many open files)")], None),
        ([(IO, "Connection reset by /10.0.0.1")], None),
    ],
)
def test_the_file_that_is_gone(chain: list[tuple[tuple[str, ...], str]], file: str | None) -> None:
    assert faults.missing_file(JavaFailure(*chain)) == file


def test_a_bug_is_told_with_its_kind() -> None:
    assert faults.message_of(KeyError("k")) == "KeyError: 'k'"
    assert faults.message_of(AssertionError()) == "AssertionError"
    assert faults.message_of(NotFoundError("There is no table t.")) == "There is no table t."
