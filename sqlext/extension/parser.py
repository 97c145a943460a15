"""Spark's ParserInterface, implemented in Python, as the outermost parser around Delta's and Spark's own.

Any statement that is not sqlext's is passed on byte for byte. Statements of sqlext are answered by `commands/`; here the answer
becomes a plan: a relation with real columns, or a command that runs when Spark executes it.

Java calls these objects from any thread, so they hold no state but the parser that they wrap. They do not hold their session
either: a reference from Python to the session and one from the session to this object would keep both alive for ever.

Relies on the private side of Spark and Py4J.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import ParseException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from sqlext.commands.answers import Answer, DeferredCommand, Table, relation_sql
from sqlext.errors import Position, SqlextError, UnsupportedError
from sqlext.functions.scalar import AGGREGATE_SET
from sqlext.redaction import SECRET_NAMES, of_application, use_patterns
from sqlext.spark import query_context_log
from sqlext.spark.failures import reason_of
from sqlext.spark.java import items_of, java_array, java_of, kept
from sqlext.spark.set_aggregates import aggregate_set
from sqlext.sql.parameters import substitute
from sqlext.sql.tokens import is_ours

logger = logging.getLogger(__name__)

Answerer = Callable[[SparkSession, str, Callable[[str], Any]], Answer]
"""The function that answers a statement of sqlext, given its session, its text, and Spark's own parser."""

_VARIABLE = re.compile(r"\$(\{(?:\w+?:)?\S+?\})", re.ASCII)  # what Spark's ConfigReader substitutes
_UNKNOWN = "$\ufdd0"
"""What stands for the `${` of variables that Spark does not know, in texts whose parameters get values; no text has this code."""
_PATH = re.compile(r"(?:\w+:)?/(?:[^\s'\"/]+/)+([^\s'\"/]*)")  # clients must not see folders of this machine
_INTERRUPTED = ("java.lang.InterruptedException", "java.nio.channels.ClosedByInterruptException")
_PIPELINES = "org.apache.spark.sql.pipelines."
_FREE_TEXT_CONDITION = "_LEGACY_ERROR_TEMP_3100"  # Spark's error condition with a free text as its message


def install(context: SparkContext, extensions: Any, answer: Answerer) -> None:
    """Put our parser around all others, in every session created with `extensions` from now on."""
    gateway = context._gateway
    use_patterns(context.getConf().get("spark.redaction.regex") or SECRET_NAMES)
    _listen(gateway)
    logging.getLogger("py4j.clientserver").addFilter(_is_news)
    query_context_log.install()
    gateway.python_parameters.propagate_java_exceptions = True  # type: ignore[union-attr]  # a Py4JJavaError keeps its Java type
    extensions.injectParser(_ParserBuilder(_Seam(context, answer)))


def _listen(gateway: Any) -> None:
    """Start the server by which Java calls Python.

    Py4J starts to listen in a thread, so a call that comes before the thread is refused; Java calls first within milliseconds.
    """
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    gateway.get_callback_server().server_socket.listen()  # the thread does it again, which changes nothing


def inject_function(context: SparkContext, extensions: Any, name: str, function: Any) -> None:
    """Register a SQL function for every session created with `extensions` from now on.

    Args:
        context: the application's context.
        extensions: Spark's SparkSessionExtensions.
        name: the function's name in SQL.
        function: a result of `pyspark.sql.functions.udf` or `pandas_udf`.
    """
    _inject(context, extensions, name, _FunctionBuilder(function._unwrapped._judf.builder))


def inject_aggregate_set(session: SparkSession) -> None:
    """Register the function that runs an aggregate over a set, in a session and in all created from now on."""

    def build(arguments: Any) -> Any:
        return aggregate_set(session.sparkContext, arguments.apply(0).value().toString(), arguments.apply(1))

    builder = _FunctionBuilder(build)
    java_session = session._jsparkSession
    java_session.sessionState().functionRegistry().createOrReplaceTempFunction(AGGREGATE_SET, builder, "python_udf")
    _inject(session.sparkContext, java_session.extensions(), AGGREGATE_SET, builder)


def inject_table_function(session: SparkSession, name: str, plan_of_call: Callable[[SparkSession, str, Any], Any]) -> None:
    """Register a table function in a session and in all created from now on.

    To Spark it is built in, so views of a catalog may call it.

    Args:
        session: any session of the application.
        name: the function's name in SQL.
        plan_of_call: called with the session that analyses the query, the name, and the arguments as Catalyst expressions.
    """
    seam = _Seam(session.sparkContext)
    jvm, some = seam.jvm, seam.jvm.scala.Option.apply

    def build(arguments: Any) -> Any:
        return seam.guarded("", lambda: plan_of_call(seam.active_session(), name, arguments), is_checked=False)

    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
    info = jvm.org.apache.spark.sql.catalyst.expressions.ExpressionInfo("sqlext", name)
    builder = _FunctionBuilder(build)
    registry = jvm.org.apache.spark.sql.catalyst.analysis.TableFunctionRegistry.builtin()  # each new session copies it
    for each in (registry, session._jsparkSession.sessionState().tableFunctionRegistry()):
        each.registerFunction(identifier, info, builder)


def _inject(context: SparkContext, extensions: Any, name: str, builder: _FunctionBuilder) -> None:
    jvm = java_of(context)
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name)
    info = jvm.org.apache.spark.sql.catalyst.expressions.ExpressionInfo("sqlext", name)
    extensions.injectFunction(jvm.scala.Tuple3(identifier, info, builder))


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether to log a record: Py4J logs a traceback for every exception that passes through it on its way to the user."""
    return not (record.exc_info and isinstance(record.exc_info[1], Py4JJavaError))


class _JavaObject:
    """The methods that Java expects of every object; without them Spark's plans fail."""

    def toString(self) -> str:
        return type(self).__name__

    def hashCode(self) -> int:
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        return self is other


class _Seam:
    """The common part of all our proxies: access to the JVM, and the conversion of errors on their way out."""

    def __init__(self, context: SparkContext, answer: Answerer | None = None) -> None:
        self.context = context
        self.jvm = java_of(context)
        self.answer = answer

    def active_session(self) -> SparkSession:
        java_session = self.jvm.org.apache.spark.sql.classic.SparkSession.active()
        return SparkSession(self.context, java_session)

    def with_variables(self, text: str) -> str:
        """Substitute Spark's `${..}` variables in a statement of sqlext.

        A flow or job is recorded with their values: the session that resumes it has other variables, or none.
        """
        return str(self.jvm.org.apache.spark.sql.internal.VariableSubstitution().substitute(text)) if "${" in text else text

    def without_variables(self, text: str) -> str:
        """Return a statement without the `${..}` that Spark's parser would find: all stand in the values of parameters.

        Raises:
            UnsupportedError: literals have no escapes in this session.
        """
        conf = self.jvm.org.apache.spark.sql.internal.SQLConf.get()
        if not _VARIABLE.search(text) or not conf.variableSubstituteEnabled():
            return text
        if conf.escapedStringLiterals():
            raise UnsupportedError(
                "The value of a parameter contains `${`, which Spark would take for one of its variables. Set "
                "spark.sql.variable.substitute to false, or spark.sql.parser.escapedStringLiterals to false."
            )
        return _VARIABLE.sub(r"\\u0024\1", text)

    def guarded(self, text: str, action: Callable[[], Any], is_checked: bool = True) -> Any:
        """Run `action`, and convert whatever it raises into a Java exception.

        Args:
            text: the statement, for the message.
            action: the call of our code.
            is_checked: whether Java accepts a ParseException here. Elsewhere Java would wrap it beyond recognition, so it becomes
                a SparkRuntimeException.
        """
        try:
            with query_context_log.inside_a_proxy():
                return kept(action())
        except (CapturedException, Py4JJavaError) as error:  # hand Java its own exception back
            origin: Any = error._origin if isinstance(error, CapturedException) else error.java_exception
            if str(origin.getClass().getName()) in _INTERRUPTED:
                raise Py4JJavaError("", kept(self._unchecked("The statement was canceled."))) from None
            if self._passes(origin, is_checked):
                raise Py4JJavaError("", kept(origin)) from None
            if is_checked and hasattr(origin, "origin"):  # an error of SQL scripting; Java may not see its type here
                raise Py4JJavaError("", kept(self._as_parse_exception(text, origin))) from None
            raise Py4JJavaError("", kept(self._unchecked(reason_of(error)))) from None
        except SqlextError as error:
            java = self._parse_exception(text, error.message, error.position) if is_checked else self._unchecked(str(error))
            raise Py4JJavaError("", kept(java)) from None
        except Exception as error:  # a bug of sqlext: the user gets a sentence, the log gets the traceback
            logger.exception("internal error in statement: %s", of_application().sql(text))
            first_line = of_application().message(_PATH.sub(r"\1", str(error).partition("\n")[0]))
            message = f"sqlext failed on this statement ({type(error).__name__}: {first_line}). Please report it."
            java = self._parse_exception(text, message, None) if is_checked else self._unchecked(message)
            raise Py4JJavaError("", kept(java)) from None

    def _passes(self, error: Any, is_checked: bool) -> bool:
        """Return whether Java passes the exception on unchanged: it is unchecked, or declared by the method that throws it."""
        name = "org.apache.spark.sql.catalyst.parser.ParseException"
        kinds = ["java.lang.RuntimeException", "java.lang.Error", *([name] if is_checked else [])]
        loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return any(self.jvm.java.lang.Class.forName(kind, True, loader).isInstance(error) for kind in kinds)

    def _as_parse_exception(self, text: str, error: Any) -> Any:
        some = self.jvm.scala.Option.apply
        parameters = self.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(error.getMessageParameters())
        exception = self.jvm.org.apache.spark.sql.catalyst.parser.ParseException
        return exception(some(text), error.origin(), error.getCondition(), parameters)

    def _unchecked(self, message: str) -> Any:
        contexts = java_array(self.context, self.jvm.org.apache.spark.QueryContext, ())
        parameters = self.scala_map({"message": message})
        return self.jvm.org.apache.spark.SparkRuntimeException(_FREE_TEXT_CONDITION, parameters, None, contexts, "")

    def _parse_exception(self, text: str, message: str, position: Position | None) -> Any:
        catalyst = self.jvm.org.apache.spark.sql.catalyst
        some = self.jvm.scala.Option.apply
        place: tuple[int | None, ...] = (None,) * 4
        if position is not None:
            place = (position.line, position.column - 1, position.start, position.stop - 1)
        origin = catalyst.trees.Origin(*map(some, place), some(text), *(some(None) for _ in range(5)))
        parameters = self.scala_map({"message": message})
        return catalyst.parser.ParseException(some(text), origin, _FREE_TEXT_CONDITION, parameters)

    def scala_map(self, entries: dict[str, str]) -> Any:
        java_map = self.jvm.java.util.HashMap()
        for key, value in entries.items():
            java_map[key] = value
        return self.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java_map)

    def string_array(self, lines: list[str]) -> Any:
        return java_array(self.context, self.jvm.java.lang.String, lines)


class _Parser(_JavaObject):
    """The parser of one session; Java calls its camelCase methods."""

    def __init__(self, seam: _Seam, delegate: Any) -> None:
        self._seam = seam
        self._delegate = delegate

    def parsePlan(self, text: str) -> Any:
        return self._seam.guarded(text, lambda: self._plan(text))

    def parsePlanWithParameters(self, text: str, context: Any) -> Any:
        """Parse `spark.sql(text, args)`: the values are put into the text first, as Delta's own method would drop them."""
        return self._seam.guarded(text, lambda: self._plan(self._substituted(text, context)))

    def _substituted(self, text: str, context: Any) -> str:
        """Return the text with its parameters' values, which Spark's own parser puts in after the values of `${..}`, too."""
        is_hybrid = str(context.getClass().getSimpleName()) == "HybridParameterContext"  # of EXECUTE IMMEDIATE .. USING
        values = context.args() if is_hybrid else context.params()
        if values.isEmpty():  # Spark's substitution would change nothing, and refuse sqlext's clauses
            return text
        text = self._seam.with_variables(text)
        unmarked = text.replace("${", _UNKNOWN)  # what Spark has left of them stays, be it in r'..' or backticks
        handler = self._seam.jvm.org.apache.spark.sql.catalyst.parser.ParameterHandler
        try:
            found = str(handler.substituteParameters(unmarked, context)._1())
        except ParseException:
            if not is_ours(text):
                handler.substituteParameters(text, context)  # fails, too, and tells of the text as it is
                raise
            found = substitute(unmarked, *_parameters(context))
        return self._seam.without_variables(found).replace(_UNKNOWN, "${")

    def _plan(self, text: str) -> Any:
        if not is_ours(text) or self._registers_a_pipeline():
            return self._delegate.parsePlan(text)
        text = self._seam.with_variables(text)
        assert self._seam.answer is not None
        answer = self._seam.answer(self._seam.active_session(), text, self._delegate.parsePlan)
        if isinstance(answer, Table):
            return self._delegate.parsePlan(relation_sql(answer))
        if isinstance(answer, DeferredCommand):
            executor = self._seam.jvm.org.apache.spark.sql.execution.command.ExternalCommandExecutor
            return executor(_Command(self._seam, text, answer), answer.name, self._seam.scala_map({}))
        return self._delegate.parsePlan(text if answer.text is None else answer.text)

    def _registers_a_pipeline(self) -> bool:
        """Return whether Spark's declarative pipelines call: they make graph elements from Spark's own plans of these statements.

        They use the same sessions and parsers as all clients, so only the stack of the calling thread identifies them.
        """
        stack = self._seam.jvm.org.apache.spark.util.Utils.exceptionString(self._seam.jvm.java.lang.Exception())
        return _PIPELINES in str(stack)  # as one text: an array would take a call for each frame

    def __getattr__(self, name: str) -> Any:
        """Pass parseExpression, parseDataType and the like straight through."""
        if not name.startswith("parse"):
            raise AttributeError(name)
        method = getattr(self._delegate, name)
        return lambda *args: self._seam.guarded(str(args[0]), lambda: method(*args))

    class Java:
        implements = ["org.apache.spark.sql.catalyst.parser.ParserInterface"]  # noqa: RUF012  # Py4J's own form


def _parameters(context: Any) -> tuple[dict[str, str], list[str]]:
    """Return the values in one of Spark's ParameterContexts as SQL literals: those with a name, and the others in order."""
    kind = str(context.getClass().getSimpleName())
    if kind == "NamedParameterContext":
        return {str(pair._1()): str(pair._2().sql()) for pair in items_of(context.params().toSeq())}, []
    if kind == "PositionalParameterContext":
        return {}, [str(value.sql()) for value in items_of(context.params())]
    values = [str(value.sql()) for value in items_of(context.args())]  # of EXECUTE IMMEDIATE .. USING: a name may be empty
    named = dict(zip(map(str, items_of(context.paramNames())), values, strict=False))
    return {name: value for name, value in named.items() if name}, values


class _Command(_JavaObject):
    """A command that runs when Spark executes it, not when it is parsed; returns one string column."""

    def __init__(self, seam: _Seam, text: str, deferred: DeferredCommand) -> None:
        self._seam = seam
        self._text = text
        self._deferred = deferred

    def executeCommand(self, command: str, options: Any) -> Any:
        return self._seam.guarded(self._text, lambda: self._seam.string_array(self._deferred.run()), is_checked=False)

    class Java:
        implements = ["org.apache.spark.sql.connector.ExternalCommandRunner"]  # noqa: RUF012


class _FunctionBuilder(_JavaObject):
    """The builder that Java calls for the expression of one call of a function."""

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self._build = build

    def apply(self, arguments: Any) -> Any:
        return kept(self._build(arguments))

    class Java:
        implements = ["scala.Function1"]  # noqa: RUF012


class _ParserBuilder(_JavaObject):
    """The builder that Spark calls once per session: newSession, Thrift, Connect, foreachBatch clones."""

    def __init__(self, seam: _Seam) -> None:
        self._seam = seam

    def apply(self, session: Any, delegate: Any) -> _Parser:
        return _Parser(self._seam, delegate)

    class Java:
        implements = ["scala.Function2"]  # noqa: RUF012
