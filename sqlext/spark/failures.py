"""The errors of Spark, Delta and Hadoop: what their messages and Java causes say."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.redaction import of_application

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""The errors that Spark and Delta raise."""
UNRESOLVED_ROUTINE = "UNRESOLVED_ROUTINE"
"""The condition of an error about a function that Spark does not have."""
_EXCERPT = re.compile(r"== SQL|JVM stacktrace|;\s*line \d+ pos \d+;|;\n[~'!]*[A-Z]")  # what follows is not prose
_DECORATION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] | SQLSTATE: \w+| Please ensure that the value .*? correct format\.")
_ONLY_SAYS_WHERE = "[TASK_WRITE_FAILED]"  # Spark's condition that wraps the error of a task that writes files
_TRACEBACK = "Traceback (most recent call last):\n"
_MOST_CAUSES = 20


def root_reason(error: BaseException) -> str:
    """Return the message of an error's innermost Java cause that says more than its own cause.

    Spark wraps errors in settings into errors about its own classes; Netty's error about a connection names the address, and its
    cause does not.
    """
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    if java is None:
        return str(error)
    reasons = []
    while java is not None:
        reasons.append(str(java.getMessage() or java.toString()))
        java = java.getCause()
    inner = reasons.pop()
    while reasons and reasons[-1].startswith(inner):
        inner = reasons.pop()
    return inner


def reason_of(error: BaseException) -> str:
    """Return the message of an error from the JVM without condition name, SQLSTATE, plan, SQL excerpt, stack and secrets."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        java = error.java_exception
        text = str(java.getMessage() or java.getClass().getName())
        if text.startswith(_ONLY_SAYS_WHERE) and java.getCause() is not None:
            text = str(java.getCause().getMessage() or text)
    lines = [line.strip() for line in _EXCERPT.split(_without_traceback(text))[0].splitlines() if line.strip()]
    return of_application().message(_DECORATION.sub("", " ".join(lines[:4])).strip()) or type(error).__name__


def _without_traceback(text: str) -> str:
    """Replace a Python traceback in a message by the exception that was raised."""
    head, found, traceback = text.partition(_TRACEBACK)
    raised = [line for line in traceback.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return f"{head.rstrip()} {raised[0]}" if found and raised else text


def causes_of(error: BaseException) -> list[Any]:
    """Return the Java errors behind a Python error, outermost first; none for an error raised in Python."""
    java = getattr(error, "java_exception", None)
    java = java if java is not None else getattr(error, "_origin", None)
    java = java if java is not None else getattr(getattr(error, "_cause", None), "_origin", None)
    found: list[Any] = []
    while java is not None and len(found) < _MOST_CAUSES:
        found.append(java)
        java = java.getCause()
    return found


def failure_of(query: StreamingQuery) -> BaseException | None:
    """Return the error that ended a streaming query, with its Java cause.

    PySpark drops the cause if it does not know the cause's class.
    """
    error = query.exception()
    if error is not None:
        vars(error)["java_exception"] = query._jsq.exception().get().getCause()
    return error


def conditions_of(error: BaseException) -> list[str]:
    """Return the names of Spark's conditions in an error and its causes, such as TABLE_OR_VIEW_NOT_FOUND."""
    return _said_by(error, "getCondition")


def sql_states_of(error: BaseException) -> list[str]:
    """Return the SQLSTATEs of an error and its causes, such as 22012 of a division by zero."""
    return _said_by(error, "getSqlState")


def _said_by(error: BaseException, method: str) -> list[str]:
    """Return what a method of Spark's errors says of an error and its causes, in Python and in Java."""
    chain = [error, getattr(error, "_cause", None)]
    said = [getattr(each, method)() for each in chain if isinstance(each, PySparkException)]
    said += [getattr(java, method)() for java in causes_of(error) if method in dir(java)]
    return [str(each) for each in said if each]


def parameters_of(error: BaseException, conditions: Collection[str]) -> dict[str, str] | None:
    """Return an error's message parameters, if the error or one of its causes has one of the conditions; None if not."""
    for java in causes_of(error):
        if "getCondition" in dir(java) and java.getCondition() in conditions:
            return {str(key): str(value) for key, value in dict(java.getMessageParameters()).items()}
    return None


def fragment_of(error: BaseException) -> str:
    """Return the part of a query that could not be computed for a row, such as `v / 0`; empty: the error does not say."""
    with suppress(Py4JError):  # Spark may be gone, and its error still be told
        for java in causes_of(error):
            with suppress(Py4JError):  # Py4J cannot call the method of Delta's errors
                for context in java.getQueryContext() if "getQueryContext" in dir(java) else ():
                    if str(context.contextType().toString()) == "SQL":
                        return " ".join(str(context.fragment()).split())
    return ""


def lacks_file(error: BaseException) -> bool:
    """Return whether an error is that a file is gone, such as one that VACUUM has deleted."""
    is_unread = any(name.startswith("FAILED_READ_FILE.") and name.endswith("NOT_EXIST") for name in conditions_of(error))
    return is_unread or any(kind.endswith("FileNotFoundException") for java in causes_of(error) for kind in kinds_of(java))


def cannot_be_planned(error: BaseException) -> bool:
    """Return whether an error is that Spark fails to analyse a plan that was derived of an analysed one, or to optimize it."""
    of_optimizer = ("INTERNAL_ERROR", "PLAN_VALIDATION_FAILED")
    return isinstance(error, AnalysisException) or any(name.startswith(of_optimizer) for name in conditions_of(error))


def kinds_of(java: Any) -> list[str]:
    """Return the names of a Java object's class and its superclasses."""
    names, kind = [], java.getClass()
    while kind is not None:
        names.append(str(kind.getName()))
        kind = kind.getSuperclass()
    return names


def condition_of(error: AnalysisException) -> str:
    """Return the condition of an error; of a function that Spark does not have, with its name: it may be one of ours."""
    condition = error.getCondition() or type(error).__name__
    is_routine = condition == UNRESOLVED_ROUTINE
    return f"{condition} {(error.getMessageParameters() or {}).get('routineName')}" if is_routine else condition
