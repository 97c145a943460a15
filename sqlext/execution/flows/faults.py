"""Causes of a flow's failure: a fault that may pass by itself, a changed source, or a permanent error.

A flow is retried after a fault that may pass; any other failure ends it, with its cause. In doubt, a failure is permanent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JError, Py4JJavaError

from sqlext.errors import NotFoundError, SetupError, SqlextError, WaitTimeoutError
from sqlext.execution.state.buffer import is_lost
from sqlext.spark import failures
from sqlext.spark.failures import SPARK_ERRORS

_NOT_THERE_YET = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND")
_SCHEMA_CHANGED = ("DELTA_SCHEMA_CHANGED", "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS", "DELTA_STREAMING_METADATA_EVOLUTION")
_STAYS = (
    "java.io.FileNotFoundException",  # of Delta's log, too
    "java.io.InvalidClassException",
    "java.io.NotSerializableException",
    "java.nio.file.AccessDeniedException",
    "java.nio.file.NoSuchFileException",
    "org.apache.hadoop.security.AccessControlException",
)
"""Kinds of I/O error that no time heals."""
_MOST_FRAGMENT = 300
"""The characters of an expression that a message shows."""
_FILE_IS_GONE = {"java.io.FileNotFoundException", "java.nio.file.NoSuchFileException"}
_PATH = re.compile(r"(?:\b[a-z][a-z0-9]+:)?/\S+")
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
_SAYS_MAY_PASS = {
    "java.io.FileNotFoundException": ("(No space left on device)", "(Too many open files", "(Input/output error)"),
    "org.apache.hadoop.hive.metastore.api.MetaException": ("",),
    "org.apache.hadoop.hive.ql.metadata.HiveException": ("MetaException(message:", "MetaStoreClient", "TTransportException"),
    "org.apache.spark.sql.AnalysisException": ("HiveException: MetaException(message:", "SessionHiveMetaStoreClient"),
    "org.apache.kafka.common.config.ConfigException": ("No resolvable bootstrap urls",),
}
"""Kinds of error that may pass where their message says so, or a message in which their cause is only a text."""
_SAYS_STAYS = ("AccessControlException", "Permission denied", "AuthorizationException")
"""Texts of permanent errors, in any kind of error."""


def message_of(error: BaseException) -> str:
    """Return the message of a flow's error, without the text that Spark's streams put around it; for a bug, with its class.

    Where a row could not be computed, the message has the expression.
    """
    said = failures.reason_of(error).split("terminated with exception:", 1)[-1].strip()
    if (fragment := failures.fragment_of(error)) and fragment not in said:
        said = f"{said} The expression is: {fragment[:_MOST_FRAGMENT]}"
    kind = type(error).__name__
    return f"{kind}: {said}" if isinstance(error, (LookupError, AssertionError)) and not is_told(error) and said != kind else said


def is_told(error: BaseException) -> bool:
    """Whether an error was written for users, by sqlext, Spark or the operating system; all others are bugs."""
    return isinstance(error, (SqlextError, *SPARK_ERRORS, OSError))


def may_pass(error: BaseException) -> bool:
    """Whether a flow that failed so is tried again."""
    for each in _python_chain(error):
        if isinstance(each, (SetupError, WaitTimeoutError, DeltaConcurrentModificationException)) or is_lost(each):
            return True
        if isinstance(each, NotFoundError):
            return False  # its own target: gone for good, or another one now
        if isinstance(each, (OSError, Py4JError)) and not isinstance(each, (SqlextError, Py4JJavaError)):
            return True
        if isinstance(each, SPARK_ERRORS):
            return _java_may_pass(each)
    return False


def missing_file(error: BaseException) -> str | None:
    """Return the path of the missing file that an error is about; None for other errors."""
    for java in failures.causes_of(error):
        if _FILE_IS_GONE.intersection(failures.kinds_of(java)) and _cause_may_pass(java) is False:
            found = _PATH.search(str(java.getMessage() or ""))
            return found[0].rstrip(".,:;") if found else None
    return None


def is_schema_change(error: BaseException) -> bool:
    """Whether a source of the flow has other columns than when its query was analysed."""
    return any(name.startswith(_SCHEMA_CHANGED) for each in _python_chain(error) for name in failures.conditions_of(each))


def _python_chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _java_may_pass(error: BaseException) -> bool:
    if any(name.split(".")[0] in _NOT_THERE_YET for name in failures.conditions_of(error)):
        return True
    found = [_cause_may_pass(cause) for cause in failures.causes_of(error)]
    return True in found and False not in found


def _cause_may_pass(java: Any) -> bool | None:
    """Return whether a Java error may pass; None if it does not say."""
    kinds, text = failures.kinds_of(java), str(java.getMessage() or "")
    says = [said in text for kind in kinds for said in _SAYS_MAY_PASS.get(kind, ())]
    if any(says):
        return not any(said in text for said in _SAYS_STAYS)
    if any(kind in _STAYS for kind in kinds):
        return False
    return True if any(kind in _MAY_PASS for kind in kinds) else None
