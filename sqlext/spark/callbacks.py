"""The connections between Java and this process, one for each thread: what they begin with, and their cleanup.

Each Java thread that calls Python gets a connection of its own, with a Python thread behind it, and Py4J keeps both for ever.
Servers use up threads as long as they run: Spark Connect one for each statement; and each start of a flow takes some.

Each Python thread that calls Java has a connection, too, which Py4J forgets with the thread, but once only: if Java has called
back in between, as Spark's parser does for each statement, it is noted twice, and stays, with a Java thread behind it.

The Java thread behind a Python thread has no active session, and without one Delta cannot read the checkpoint of a log whose
newest version has no checksum, as a crash leaves it. So those of sqlext's own threads get one.

Relies on the private side of Py4J.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.clientserver import ClientServerConnection
from py4j.protocol import CALL_COMMAND_NAME, END_COMMAND_PART, Py4JError, get_command_part
from pyspark.sql import SparkSession

from sqlext.spark.java import field_of, java_of

logger = logging.getLogger(__name__)

_OWN_THREADS = "sqlext-"
"""What the names of sqlext's threads begin with."""
_EVERY_SECONDS = 10.0
_DEADLINE = 10.0


class _Connection(ClientServerConnection):  # type: ignore[misc]  # py4j has no types
    """A connection that knows which Java thread it belongs to, without keeping the thread and what that refers to."""

    current_thread: Callable[[], Any] | None = None
    """Returns a weak reference to the Java thread that calls."""
    owner: Any = None
    port = 0  # Java's

    def _get_params(self, received: Any) -> list[Any]:
        params: list[Any] = super()._get_params(received)
        if self.owner is None and self.current_thread is not None:  # after the parameters: Java's answer follows in the stream
            self.owner = self.current_thread()
        return params

    @property
    def is_dead(self) -> bool:
        """Whether the Java thread has ended."""
        if self.owner is None:  # it has not called yet
            return False
        thread = self.owner.get()
        return thread is None or not thread.isAlive()


class _EachOnce(deque[Any]):
    """The connections of a Py4J client that are not in use, each once."""

    def append(self, connection: Any) -> None:
        """Add a connection; one that is there already is moved."""
        with suppress(ValueError):
            self.remove(connection)
        super().append(connection)


class ActiveSessions:
    """Gives the Java threads behind sqlext's own threads an active session from their first call on, until it is closed.

    Args:
        spark: the session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
        self._create = self._client._create_new_connection
        activate = java_of(spark).org.apache.spark.sql.classic.SparkSession.setActiveSession
        argument = get_command_part(spark._jsparkSession)
        self._command = f"{CALL_COMMAND_NAME}{activate.command_header}{argument}{END_COMMAND_PART}"
        self._client._create_new_connection = self._made

    def close(self) -> None:
        """Leave threads as Py4J makes them, from now on."""
        vars(self._client).pop("_create_new_connection", None)  # uncovers the method of the class, Py4J's own

    def _made(self) -> Any:
        connection = self._create()
        if threading.current_thread().name.startswith(_OWN_THREADS):
            connection.send_command(self._command)
        return connection


class DeadConnections:
    """A background thread that closes the connections of ended Java threads, until it is closed itself.

    Those of ended Python threads need no thread: Py4J closes them, once it has noted them once.

    Args:
        spark: any session of the application.
        every: the time between two sweeps, in seconds.
    """

    def __init__(self, spark: SparkSession, every: float = _EVERY_SECONDS) -> None:
        gateway: Any = spark.sparkContext._gateway
        if not isinstance(gateway._gateway_client.deque, _EachOnce):  # another application of this process has been here
            gateway._gateway_client.deque = _EachOnce(gateway._gateway_client.deque)
        self._server = gateway.get_callback_server()
        self._client = gateway.java_gateway_server.getCallbackClient()
        thread, reference = java_of(spark).java.lang.Thread, java_of(spark).java.lang.ref.WeakReference
        self._current_thread = lambda: reference(thread.currentThread())
        self._server._create_connection = self._made
        self._every = every
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sqlext-connections", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the background thread."""
        self._closed.set()
        self._thread.join(_DEADLINE)
        vars(self._server).pop("_create_connection", None)  # uncovers the method of the class, Py4J's own

    def _made(self, socket: Any, stream: Any) -> _Connection:
        """Create a connection for a Java thread, as Py4J does."""
        server = self._server
        connection = _Connection(
            server.java_parameters, server.python_parameters, server.gateway_property, server.gateway_client, server
        )
        connection.current_thread = self._current_thread
        connection.port = socket.getpeername()[1]
        connection.init_socket_from_python_server(socket, stream)
        return connection

    def _run(self) -> None:
        while not self._closed.wait(self._every):
            try:
                self.sweep()
            except (Py4JError, OSError):  # Java has ended, or is about to
                logger.debug("connections of ended threads were not closed", exc_info=True)
            except Exception:  # the next sweep may succeed; without sweeps the server would run out of files
                logger.exception("connections of ended threads were not closed")

    def sweep(self) -> None:
        """Close the connections of ended threads on Java's side, which ends Python's side too."""
        known = [each for each in list(self._server.connections) if isinstance(each, _Connection)]
        ports = {each.port for each in known if each.is_dead}
        if not ports:
            return
        lock, connections = field_of(self._client, "lock"), field_of(self._client, "connections")
        lock.lock()  # held by the Java thread that corresponds to this one
        try:
            for each in list(connections.toArray()):
                if not each.isInitiatedFromClient():
                    continue
                socket = each.getSocket()  # None once it is closed, after a failed call
                if socket is None or socket.getLocalPort() in ports:
                    connections.remove(each)
                    each.shutdown()
        finally:
            lock.unlock()
