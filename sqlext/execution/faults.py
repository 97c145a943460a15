"""What made a flow fail: something that may pass by itself, a source that has changed its columns, or something that stays.

A flow that fails by what may pass is tried again; by all else it is ended, with its cause: when in doubt, that.
"""

from __future__ import annotations

from collections.abc import Iterator

from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from sqlext import jvm
from sqlext.errors import NotFoundError, SetupError, SqlextError, WaitTimeoutError
from sqlext.execution.buffer import is_lost

_NOT_THERE_YET = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND")
_SCHEMA_CHANGED = ("DELTA_SCHEMA_CHANGED", "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS", "DELTA_STREAMING_METADATA_EVOLUTION")
_STAYS = (
    "java.io.InvalidClassException",
    "java.io.NotSerializableException",
    "java.nio.file.AccessDeniedException",
    "org.apache.hadoop.security.AccessControlException",
)
"""Kinds of I/O error that no time heals."""
_MAY_PASS = (
    "java.io.IOException",
    "java.io.UncheckedIOException",
    "java.net.SocketException",
    "java.util.concurrent.TimeoutException",
    "java.sql.SQLTransientException",
    "java.sql.SQLRecoverableException",
    "java.sql.SQLNonTransientConnectionException",
    "org.apache.kafka.common.errors.RetriableException",
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.thrift.transport.TTransportException",
    "com.amazonaws.SdkClientException",
    "software.amazon.awssdk.core.exception.SdkClientException",
    "org.apache.spark.rpc.RpcTimeoutException",
    "io.delta.exceptions.DeltaConcurrentModificationException",
    "org.apache.spark.sql.delta.DeltaConcurrentModificationException",
)
"""Metastore, broker, storage and network that do not answer, and commits of others that came first."""


def message_of(error: BaseException) -> str:
    """What an error of a flow says, without what Spark's streams say around it."""
    return jvm.reason_of(error).split("terminated with exception:", 1)[-1].strip()


def may_pass(error: BaseException) -> bool:
    """Whether a flow that failed so is tried again."""
    for each in _python_chain(error):
        if isinstance(each, (SetupError, WaitTimeoutError, DeltaConcurrentModificationException)) or is_lost(each):
            return True
        if isinstance(each, NotFoundError):
            return False  # its own target: gone for good, or another one now
        if isinstance(each, (OSError, Py4JError)) and not isinstance(each, (SqlextError, Py4JJavaError)):
            return True
        if isinstance(each, (PySparkException, Py4JJavaError)):
            return _java_may_pass(each)
    return False


def is_schema_change(error: BaseException) -> bool:
    """Whether a source of the flow has other columns than when its query was analysed."""
    return any(name.startswith(_SCHEMA_CHANGED) for each in _python_chain(error) for name in jvm.conditions_of(each))


def _python_chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _java_may_pass(error: BaseException) -> bool:
    if any(name.split(".")[0] in _NOT_THERE_YET for name in jvm.conditions_of(error)):
        return True
    kinds = [kind for cause in jvm.causes_of(error) for kind in jvm.kinds_of(cause)]
    return not any(kind in _STAYS for kind in kinds) and any(kind in _MAY_PASS for kind in kinds)
