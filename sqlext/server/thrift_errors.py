"""HiveServer2's answers, with error messages rewritten by `client_messages`.

HiveServer2 puts the Java stack of each error into its answer. Its Thrift interface is a Java interface, so a Python object can
wrap it (through Py4J): requests and answers stay in Java, and only answers that are errors are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from sqlext.server.client_messages import for_client
from sqlext.spark.java import field_of, java_of, kept, set_field

_WITHOUT_STATUS = "GetQueryId"


class _Service:
    """A proxy of HiveServer2's own service. Java calls it from any thread; its only state is the service."""

    def __init__(self, service: Any, hidden: Mapping[str, str]) -> None:
        self._service = service
        self._hidden = hidden

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name[:1].isupper():  # the methods of the Thrift interface begin with a capital letter
            raise AttributeError(name)
        method = getattr(self._service, name)

        def call(*request: Any) -> Any:
            try:
                response = method(*request)
            except (CapturedException, Py4JJavaError) as error:  # one of Thrift's own, about a broken connection
                origin = error._origin if isinstance(error, CapturedException) else error.java_exception
                raise Py4JJavaError("", kept(origin)) from None
            if name != _WITHOUT_STATUS:
                self._clean(name, response)
            return kept(response)

        self.__dict__[name] = call
        return call

    def _clean(self, name: str, response: Any) -> None:
        status = response.getStatus()
        if status.isSetErrorMessage() or status.isSetInfoMessages():
            status.setErrorMessage(for_client(str(status.getErrorMessage()), self._hidden))
            status.unsetInfoMessages()
        if name == "GetOperationStatus" and response.isSetErrorMessage():
            response.setErrorMessage(for_client(str(response.getErrorMessage()), self._hidden))

    def toString(self) -> str:
        return "sqlext"

    def hashCode(self) -> int:
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        return self is other

    class Java:
        """The Java interface that Py4J implements with this class."""

        implements = ["org.apache.hive.service.rpc.thrift.TCLIService$Iface"]  # noqa: RUF012  # Py4J's own form


def hide_stacks(spark: SparkSession, service: Any, hidden: Mapping[str, str]) -> None:
    """Let clients that connect from now on see only messages, without stacks.

    Args:
        service: a ThriftBinaryCLIService that has started.
        hidden: the folders to hide, as in `for_client`.
    """
    java = java_of(spark)
    processor = java.org.apache.hive.service.auth.TSetIpAddressProcessor(_Service(service, hidden))
    set_field(field_of(service, "server"), "processorFactory_", java.org.apache.thrift.TProcessorFactory(processor))
