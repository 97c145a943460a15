"""A session at a host, over Spark Connect, for a client without Java. Only this module knows gRPC.

It is imported only for `--connect`: Spark's client takes a second to load.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterable

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # or gRPC prints on the terminal why it tries again

import grpc
from pyspark.errors import ParseException, PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import DataFrame, Row
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

from sqlext.app.connect_address import ConnectAddress
from sqlext.app.problems import problem_of
from sqlext.app.progress import TaskCounts
from sqlext.app.statement_run import Run, Task
from sqlext.errors import ConnectionLostError, SetupError, UnsupportedError, WaitTimeoutError
from sqlext.extension.results import Result, fetch

logger = logging.getLogger(__name__)

_CONNECTED_WITHIN = 5.0
_ANSWERS_WITHIN = 60.0
"""The time, in seconds, within which a host answers its first question: its first statement may be ours."""
_RETRIES = {"max_retries": 4, "initial_backoff": 200, "backoff_multiplier": 2.0, "max_backoff": 2_000}
"""Retries for three seconds in all (in milliseconds): a lost packet is bridged, a host that has ended is told soon."""
_SHORT_CALLS = ("Config", "FetchErrorDetails", "Interrupt", "ReleaseExecute", "ReleaseSession")
_SHORT_CALL_SECONDS = 10
_OPTIONS = (
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.service_config_disable_resolution", 1),
    (
        # Calls that are never long. Without a deadline, the end of this process would wait for a host that hangs.
        "grpc.service_config",
        json.dumps(
            {
                "methodConfig": [
                    {
                        "name": [{"service": "spark.connect.SparkConnectService", "method": name} for name in _SHORT_CALLS],
                        "timeout": f"{_SHORT_CALL_SECONDS}s",
                    }
                ]
            }
        ),
    ),
)
_PROBE = "SHOW PARTITION FUNCTIONS"
"""A statement of sqlext's that reads no storage."""
_SESSION_GONE = ("INVALID_HANDLE.SESSION_", "NO_ACTIVE_SESSION", "RESPONSE_ALREADY_RECEIVED")
_IS_SETTLED = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)


_LOST = {
    grpc.StatusCode.UNAVAILABLE: "The connection to {place} is lost: the host has ended, or cannot be reached. A statement that "
    "ran may have come to its end there, or not. The next statement tries again.",
    grpc.StatusCode.DEADLINE_EXCEEDED: "The host at {place} does not answer.",
    grpc.StatusCode.UNAUTHENTICATED: "The host at {place} does not admit this client: its token is missing or wrong. Set the "
    "environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN as the host has it.",
    grpc.StatusCode.PERMISSION_DENIED: "The host at {place} does not admit this client.",
    grpc.StatusCode.UNIMPLEMENTED: "The server at {place} does not serve Spark Connect.",
}
"""What failures of the connection mean, by gRPC's code."""


class _Tasks(ProgressHandler):
    """The tasks of the statement that runs, as the host reports them. Spark calls it on the statement's thread."""

    def __init__(self) -> None:
        self.counts = TaskCounts()

    def __call__(self, stages: Iterable[StageInfo] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        found = [] if done else list(stages or ())
        self.counts = TaskCounts(sum(each.num_completed_tasks for each in found), sum(each.num_tasks for each in found))


class _Channel(DefaultChannelBuilder):
    """Spark's own channel, which is watched until it stands."""

    def __init__(self, address: ConnectAddress) -> None:
        super().__init__(address.url, list(_OPTIONS))
        self._settled = threading.Event()
        self.is_known = False
        self._state = grpc.ChannelConnectivity.IDLE

    def toChannel(self) -> grpc.Channel:
        channel = super().toChannel()
        channel.subscribe(self._note, try_to_connect=True)
        return channel

    def _note(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state
        if state in _IS_SETTLED:
            self._settled.set()

    def stands(self) -> bool:
        """Return whether the channel to a server of gRPC stands; wait until that is known."""
        self.is_known = self._settled.wait(_ANSWERS_WITHIN)
        return self._state is grpc.ChannelConnectivity.READY


class ConnectedSession:
    """A session at a host, for a `StatementRunner`. The main thread, and the threads of statements, use it.

    Attributes:
        version: the host's version of Spark.
        has_sqlext: whether the host understands sqlext's statements.

    Raises:
        SetupError: there is no Spark Connect server at the address, or it refuses this client.
    """

    def __init__(self, address: ConnectAddress) -> None:
        self._address = address
        self._tasks = _Tasks()
        self._spark = self._open()
        self.version, self.has_sqlext = self._ask()

    def _open(self) -> SparkSession:
        try:
            channel = _Channel(self._address)
            spark = SparkSession.Builder().channelBuilder(channel).create()
        except PySparkException as error:
            raise SetupError(f"--connect cannot be used so: {error}") from None
        spark.client.set_retry_policies([DefaultPolicy(**_RETRIES)])  # type: ignore[arg-type]
        spark.registerProgressHandler(self._tasks)
        if not channel.stands():
            spark.client.close()
            raise SetupError(_why_not(self._address, channel.secure, channel.is_known))
        return spark

    def _ask(self) -> tuple[str, bool]:
        """Return the host's version of Spark, and whether it has sqlext."""
        asked: Task[tuple[str, bool]] = Task(lambda: (self._spark.version, self._understands_sqlext()))
        asked.thread.join(_ANSWERS_WITHIN)
        try:
            if asked.thread.is_alive():
                raise SetupError(f"The server at {self._address} has not answered within {_ANSWERS_WITHIN:.0f} s.")
            return asked.result()
        except (PySparkException, grpc.RpcError) as error:
            logger.exception("the first question to %s failed", self._address)
            self._spark.client.close()
            reason = self._lost(error) or f"The server at {self._address} refuses this client: {problem_of(error).message}"
            raise SetupError(reason) from None

    def _understands_sqlext(self) -> bool:
        try:
            self._spark.sql(_PROBE).collect()
        except ParseException:
            return False
        return True

    # For `StatementRunner`.

    def execute(self, run: Run) -> Result:
        spark = self._spark
        spark.addTag(run.tag)  # of this thread, which ends with the run
        try:
            frame = spark.sql(run.text)
            if frame.isStreaming:
                raise UnsupportedError(
                    "This SELECT reads a stream and never ends; its rows can be shown only by a shell that opens the warehouse "
                    "itself. Keep its result in a table with CREATE STREAMING TABLE t AS SELECT .., or leave STREAM out to read "
                    "what is there now."
                )
            return _fetched(spark, frame, run)
        except (PySparkException, grpc.RpcError) as error:
            if self._is_gone(error):
                self._renew()
                raise ConnectionLostError(
                    f"The host at {self._address} was restarted, or has ended this session: what it had set, and its temporary "
                    "views, are gone. A new session is open; look what the statement has done before you run it again."
                ) from None
            if lost := self._lost(error):
                raise ConnectionLostError(lost) from None
            raise

    def cancel(self, run: Run) -> None:
        try:
            self._spark.interruptTag(run.tag)
        except (PySparkException, grpc.RpcError):
            logger.exception("canceling failed")  # the statement itself says what is wrong with the connection

    def leave(self, run: Run, thread: threading.Thread) -> None:
        self.cancel(run)

    def tasks(self, tag: str) -> TaskCounts:
        return self._tasks.counts

    # Short questions, and the end.

    def rows(self, text: str, within: float) -> list[Row]:
        """Return the rows of a short statement.

        Args:
            within: the time, in seconds, after which it is given up.

        Raises:
            WaitTimeoutError: it takes longer.
            ConnectionLostError: there is no answer.
            PySparkException: it fails.
        """
        spark = self._spark
        task = Task(lambda: spark.sql(text).collect())
        task.thread.join(within)
        if task.thread.is_alive():
            raise WaitTimeoutError(f"The host at {self._address} has not answered within {within:g} s.")
        try:
            return task.result()
        except (PySparkException, grpc.RpcError) as error:
            if (lost := self._lost(error)) or isinstance(error, grpc.RpcError):
                raise ConnectionLostError(lost or f"The host at {self._address} does not answer.") from None
            raise

    def close(self) -> None:
        """End the session at the host, which keeps what runs there."""
        self._spark.stop()

    # Failures.

    def _renew(self) -> None:
        try:
            self._spark.client.close()
            self._spark = self._open()
        except SetupError as error:
            raise ConnectionLostError(error.message) from None

    def _is_gone(self, error: Exception) -> bool:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        return (condition or "").startswith(_SESSION_GONE)

    def _lost(self, error: Exception) -> str:
        """Return a sentence on a failure of the connection; empty if the error is the statement's own."""
        if isinstance(error, SparkConnectGrpcException):
            code = error.getGrpcStatusCode()
        elif isinstance(error, grpc.RpcError):
            code = error.code()
        else:
            return ""
        return _LOST.get(code, "").format(place=self._address)


def _fetched(spark: SparkSession, frame: DataFrame, run: Run) -> Result:
    try:
        return fetch(frame, run.limit)
    except PySparkException:
        if run.canceled.is_set() and frame.isLocal():  # the command had ended: only the way of its result here was canceled
            spark.removeTag(run.tag)
            return fetch(frame, run.limit)
        raise


def _why_not(address: ConnectAddress, is_secure: bool, is_known: bool) -> str:
    """Return a sentence on why no channel to an address stands; `is_known`: whether gRPC knows that it does not."""
    try:
        with socket.create_connection((address.host, address.port), _CONNECTED_WITHIN):
            pass
    except socket.gaierror:
        return f"There is no host `{address.host}`."
    except TimeoutError:
        return f"The host at {address} cannot be reached: it has not answered within {_CONNECTED_WITHIN:.0f} s."
    except ConnectionRefusedError:
        return f"No server listens at {address}. Start one: sqlext connect-server, or sqlext serve --connect."
    except OSError as error:
        return f"The host at {address} cannot be reached: {error.strerror or error}."
    if not is_known:
        return f"The server at {address} has not answered within {_ANSWERS_WITHIN:.0f} s: it is busy, or serves something else."
    if is_secure:
        return (
            f"The server at {address} does not serve Spark Connect with TLS. A token, as a parameter or in the environment "
            "variable SPARK_CONNECT_AUTHENTICATE_TOKEN, asks for TLS, unless the host is called localhost."
        )
    return f"The server at {address} does not serve Spark Connect; Thrift, for example, has a port of its own."
