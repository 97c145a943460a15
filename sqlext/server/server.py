"""The servers of a process: Thrift (JDBC, beeline, PyHive, dbt) and Spark Connect, over the session that hosts parser and flows.

Both are Spark's own. The session of each client is made by our session's `newSession()`, so that its statements reach our parser
and its flows run in this process. This module starts and stops Spark's Java objects through Py4J.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession

from sqlext.errors import SetupError
from sqlext.server.client_messages import hidden_folders
from sqlext.server.thrift_errors import hide_stacks
from sqlext.spark import java
from sqlext.spark.failures import SPARK_ERRORS, root_reason

logger = logging.getLogger(__name__)

_HIVE = "hive."
_HADOOP = "spark.hadoop."
_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # no token itself
_WITHOUT_TRACEBACKS = {"spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true"}  # of functions that the host registered


@dataclass(frozen=True)
class Listening:
    """The address at which a server listens.

    Attributes:
        what: the server's name in messages.
        host: the name or address that was given to it.
        port: its port.
        authentication: how clients are authenticated, as the server names it.
    """

    what: str
    host: str
    port: int
    authentication: str

    @property
    def is_reached_by_localhost(self) -> bool:
        """Whether the name `localhost` leads to it from this machine."""
        return self.host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "")  # noqa: S104  # nothing listens here

    @property
    def reached_at(self) -> str:
        """The host and port for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104  # as above
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def __str__(self) -> str:
        scheme = "sc://" if self.what == ConnectServer.what else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.what} server on {scheme}{host}:{self.port}, authentication {self.authentication}"


class Server(Protocol):
    """A server that this process can run. Used by one thread."""

    def settings(self) -> Mapping[str, str]:
        """Return the settings with which Spark must be started; the user's own settings take precedence."""

    def check(self) -> None:
        """Check that the server can listen, before Spark is started.

        Raises:
            SetupError: it cannot.
        """

    def start(self, spark: SparkSession) -> Listening:
        """Start the server over a session with sqlext.

        Raises:
            SetupError: the server cannot listen on its address, or a setting is wrong.
        """

    def stop(self) -> None:
        """Refuse new clients, and end the statements of connected ones."""


class _Listener:
    """A server that listens on one address.

    Args:
        host: a name or address of this machine; `0.0.0.0`: all of its addresses.
        port: the port; 0: any free port.

    Attributes:
        what: the server's name in messages.
    """

    what: str

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._server: Any = None

    def check(self) -> None:
        check_address(self.what, self._host, self._port)


class ThriftServer(_Listener):
    """Spark's HiveServer2."""

    what = "Thrift"

    def settings(self) -> Mapping[str, str]:
        return {
            f"{_HADOOP}hive.server2.thrift.bind.host": self._host,
            f"{_HADOOP}hive.server2.thrift.port": str(self._port),
            f"{_HADOOP}hive.server2.transport.mode": "binary",
            **_WITHOUT_TRACEBACKS,
        }

    def start(self, spark: SparkSession) -> Listening:
        _show_to_hive(spark)
        server = java.scala_object(spark, "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2")
        try:
            self._server = server.startWithSparkSession(spark._jsparkSession, False)
        except SPARK_ERRORS as error:
            logger.exception("the Thrift server did not start")
            raise SetupError(f"The Thrift server did not start: {root_reason(error)}.") from None
        service = next(each for each in _services(self._server) if "Thrift" in each.getName())
        authentication = str(self._server.getHiveConf().get("hive.server2.authentication")).upper()
        if authentication != "KERBEROS":  # its processor, which must not be replaced, reads more from the connection
            hide_stacks(spark, service, hidden_folders(spark.conf.get("spark.sql.warehouse.dir") or ""))
        return Listening(self.what, self._host, int(service.getPortNumber()), authentication)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


class ConnectServer(_Listener):
    """Spark Connect."""

    what = "Spark Connect"

    def settings(self) -> Mapping[str, str]:
        return {
            "spark.connect.grpc.binding.address": self._host,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.sql.connect.serverStacktrace.enabled": "false",
            **_WITHOUT_TRACEBACKS,
        }

    def start(self, spark: SparkSession) -> Listening:
        service = java.scala_object(spark, "org.apache.spark.sql.connect.service.SparkConnectService")
        try:
            service.start(spark._jsparkSession.sparkContext())
        except SPARK_ERRORS as error:
            logger.exception("the Spark Connect server did not start")
            raise SetupError(f"The Spark Connect server did not start: {root_reason(error)}.") from None
        self._server = service
        has_token = bool(spark.conf.get("spark.connect.authenticate.token", "")) or _TOKEN_VARIABLE in os.environ  # as for Java
        return Listening(self.what, self._host, int(service.localPort()), "token" if has_token else "none")

    def stop(self) -> None:
        if self._server is not None:
            none = java.java_of(SparkSession.active()).scala.Option.apply(None)
            self._server.stop(none, none)


def _show_to_hive(spark: SparkSession) -> None:
    """Copy Spark's settings for HiveServer2 to system properties.

    Hive's authenticators make a configuration of their own, which reads system properties but not Spark's settings.
    """
    system = java.java_of(spark).java.lang.System
    for key, value in spark.sparkContext.getConf().getAll():
        if key.startswith(f"{_HADOOP}hive.server2."):
            system.setProperty(key.removeprefix(_HADOOP), value)


def _services(server: Any) -> list[Any]:
    found = server.getServices()
    return [found.get(at) for at in range(found.size())]


def hive_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Return settings under the keys that Spark takes: Hive's own (`hive.server2.authentication`) are passed as Hadoop's."""
    return {f"{_HADOOP}{key}" if key.startswith(_HIVE) else key: value for key, value in conf.items()}


def check_address(what: str, host: str, port: int) -> None:
    """Check that a server can listen on an address.

    Args:
        what: the server's name in messages.
        host: a name or address of this machine.
        port: the port.

    Raises:
        SetupError: it cannot; the message has the reason.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: closed connections do not matter
            probe.bind(address)
            probe.listen(1)
    except socket.gaierror:
        raise SetupError(
            f"The {what} server cannot listen on `{host}`: there is no such host. Choose another with --host."
        ) from None
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: "another program uses that port. Stop it, or choose another port.",
            errno.EACCES: "this user may not open that port. Choose one above 1023.",
            errno.EADDRNOTAVAIL: "that is not an address of this machine. Choose another with --host.",
        }
        reason = reasons.get(error.errno or 0, f"{error.strerror}.")
        raise SetupError(f"The {what} server cannot listen on {host}:{port}: {reason}") from None
