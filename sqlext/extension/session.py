"""Enabling sqlext: `configure` before Spark starts, `enable` on a session that runs.

spark = sqlext.configure(SparkSession.builder.appName("flows")).getOrCreate()     # as with Delta
spark = sqlext.enable(spark)                                                      # as with Sedona
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from sqlext.clock import Clock, SystemClock
from sqlext.commands import job_statements
from sqlext.commands.commands import Commands
from sqlext.commands.option_levels import resolve_levels, session_levels
from sqlext.errors import SetupError, UnsupportedError, did_you_mean
from sqlext.execution.coordination.home import close_home
from sqlext.execution.coordination.home_checks import check_is_shared
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.host import Host
from sqlext.execution.views.consistent import FUNCTION as CONSISTENT_VERSIONS
from sqlext.extension import jars, parser
from sqlext.extension.live import sweep_live
from sqlext.extension.table_functions import plan_of_call
from sqlext.functions.partition import OPERATORS, PARTITION_FUNCTIONS, AggregateFunction, PartitionFunction
from sqlext.functions.scalar import FUNCTIONS, PythonFunction, Reduction
from sqlext.openlineage.sending import sender_of
from sqlext.options import CONF_PREFIX, CONNECTORS_KEY, HOME_KEY, JOB_RECOVERY, LOG_FORMAT_KEY, OPTIONS, is_option_key
from sqlext.options import option as option_of
from sqlext.planner.rule_book import rules_in_force, sql_functions
from sqlext.spark import files, kafka
from sqlext.spark.callbacks import ActiveSessions, DeadConnections
from sqlext.spark.jvm import clone_session
from sqlext.spark.storage import HadoopPath
from sqlext.sql.end_of_stream import END_OF_STREAM
from sqlext.udfs import ALL as SHIPPED_FUNCTIONS

logger = logging.getLogger(__name__)

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_CATALOG_KEY = "spark.sql.catalog.spark_catalog"
_STATIC_DEFAULTS = {
    _CATALOG_KEY: _DELTA_CATALOG,
    # How many classes of generated code Spark keeps. One flow's micro-batch and flush need about 150; with Spark's default of
    # 100, each flush would compile its own again.
    "spark.sql.codegen.cache.maxEntries": "2000",
}
_CONNECTORS = {"kafka": jars.kafka_class_path, "avro": jars.avro_class_path, "s3": jars.s3_class_path}
_DRIVER_CLASS_PATH = "spark.driver.extraClassPath"
_EXECUTOR_CLASS_PATH = "spark.executor.extraClassPath"


class Installation:
    """The objects that sqlext keeps for one Spark application.

    Attributes:
        session: a session with sqlext in it.
        host: the host of its flows; None: none was needed yet.
        clock: the clock of the next host.
        sessions: gives those of its threads an active session, until sqlext is disabled.
        connections: closes those of threads that have ended, until then.
        lineage: sends events to OpenLineage's collector; None: nobody has configured one.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.lock = threading.Lock()
        self.host: Host | None = None
        self.clock: Clock = SystemClock()
        self.sessions = ActiveSessions(session)
        self.connections = DeadConnections(session)
        self.lineage = sender_of(session)
        self.commands = Commands(self.get_host, rules_in_force)

    def get_host(self) -> Host:
        """Return the host of this application's flows, created at the first call; the lock ensures that there is only one."""
        with self.lock:
            if self.host is None:
                home = HadoopPath(self.session, home_of(self.session))
                close_home(home)
                if home.is_local and jars.is_cluster(self.session.sparkContext.master):
                    check_is_shared(self.session, home)
                self.host = Host(self.session, home_of(self.session), self.clock)
            return self.host

    def add_function(self, function: PythonFunction) -> None:
        """Register a function in this application's session, and in all created from now on."""
        FUNCTIONS.add(function)
        for name, made in sql_functions(function).items():
            self.session.udf.register(name, made)
            parser.inject_function(self.session.sparkContext, self.session._jsparkSession.extensions(), name, made)

    def close(self) -> None:
        """Close the host, if there is one."""
        with self.lock:
            host, self.host = self.host, None
        if host is not None:
            host.close()


_installations: dict[str, Installation] = {}  # by application id: one Python process has at most one that runs


def configure(builder: Any, progress: Callable[[str], None] | None = None) -> Any:
    """Prepare a session builder: Delta on the class path, its catalog, room for generated code, and sqlext in its session.

    With the master of a cluster, executors get the JARs from the driver, by `spark.jars` (see the page on clusters).

    Args:
        builder: `SparkSession.builder`, with any other settings; `spark.sqlext.connectors` = `kafka` adds Spark's Kafka source,
            `avro` its package for Avro, `s3` Hadoop's S3A.
        progress: called with one line for each of Delta's JARs that is fetched; that happens once for each version of Delta.

    Returns:
        The same builder; its `getOrCreate` returns a session with sqlext.

    Raises:
        SetupError: Java is missing or too old, Delta's JARs cannot be fetched, or a connector is unknown.
    """
    options: dict[str, Any] = builder._options
    if SparkContext._active_spark_context is None:
        jars.check_java()
        if not jars.is_cluster(options.get("spark.master")):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run in this environment, whatever PATH says
        if jars.delta_given_by(options) is None:
            _add_jars(builder, jars.delta_class_path(progress, options.get("spark.jars.ivySettings")))
        for connector in _connectors(options):
            _add_jars(builder, _CONNECTORS[connector](progress, options.get("spark.jars.ivySettings")))
        for key, value in _STATIC_DEFAULTS.items():
            if key not in options:
                builder.config(key, value)
    get_or_create = type(builder).getOrCreate
    builder.getOrCreate = lambda: enable(get_or_create(builder))
    return builder


def _add_jars(builder: Any, entry: str) -> None:
    """Put a folder of JARs on the class path of the driver, and of the executors; on a cluster, the driver sends them the files.

    The driver sees the files twice then, but loads from its class path alone: what Thrift sessions close is the other one.
    """
    _append(builder, _DRIVER_CLASS_PATH, os.pathsep, entry)
    if jars.is_cluster(builder._options.get("spark.master")):
        _append(builder, "spark.jars", ",", *jars.files_of(entry))
    else:
        _append(builder, _EXECUTOR_CLASS_PATH, os.pathsep, entry)


def _append(builder: Any, key: str, separator: str, *entries: str) -> None:
    builder.config(key, separator.join(filter(None, (str(builder._options.get(key, "")), *entries))))


def _connectors(options: Mapping[str, Any]) -> list[str]:
    named = [each.strip().lower() for each in str(options.get(CONNECTORS_KEY, "")).split(",") if each.strip()]
    for name in named:
        if name not in _CONNECTORS:
            raise SetupError(f"`{CONNECTORS_KEY}` names `{name}`. sqlext knows {', '.join(f'`{each}`' for each in _CONNECTORS)}.")
    return named


def enable(spark: SparkSession) -> SparkSession:
    """Enable sqlext in a running application.

    Args:
        spark: any session of the application.

    Returns:
        A session with sqlext and with the catalog, settings, temporary views and functions of `spark`. Sessions created from it,
        or by servers in this process, have sqlext too. Flows that were running when their process ended resume.

    Raises:
        SetupError: Delta is not on the class path, or SparkConf has a setting of ours that does not exist.
        UnsupportedError: `spark` is a Spark Connect client.
        OptionError: SparkConf has an unknown option of ours.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        raise UnsupportedError("sqlext runs in Spark's driver, not in a Spark Connect client. Use a server with sqlext enabled.")
    there = _installations.get(context.applicationId)
    if there is not None:
        return there.session
    _check_conf(spark)
    extensions = spark._jsparkSession.extensions()
    _check_delta(spark, extensions)
    holder: list[Installation] = []
    parser.install(context, extensions, lambda *statement: holder[0].commands.answer(*statement))
    session = clone_session(spark)
    session.conf.set(_CATALOG_KEY, _DELTA_CATALOG)
    session._jvm.SparkSession.setDefaultSession(session._jsparkSession)  # type: ignore[union-attr]
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)  # type: ignore[union-attr]
    SparkSession._instantiatedSession = session
    installed = Installation(session)
    holder.append(installed)
    _installations[context.applicationId] = installed
    parser.inject_aggregate_set(session)
    for operator in (*OPERATORS, END_OF_STREAM, CONSISTENT_VERSIONS, *kafka.FUNCTIONS, *files.FUNCTIONS):
        parser.inject_table_function(session, operator, plan_of_call)
    for function in (*SHIPPED_FUNCTIONS, *FUNCTIONS):
        installed.add_function(function)
    atexit.register(disable, session)
    home = HadoopPath(session, home_of(session))
    close_home(home)
    lease = Lease(home)
    sweep_live(home, lease)
    if lease.has_begun:
        lease.end()
    resume_all(session)
    return session


def disable(spark: SparkSession) -> None:
    """Flush and stop this application's flows. They resume when a session on the same home is enabled."""
    if spark.sparkContext._jsc is None:  # Spark has stopped: there is no application to ask for its id
        return
    if (installed := _installations.pop(spark.sparkContext.applicationId, None)) is not None:
        installed.close()
        if installed.lineage is not None:
            installed.lineage.close()
        installed.connections.close()
        installed.sessions.close()


def installation_of(spark: SparkSession) -> Installation:
    """Return the objects that sqlext keeps for an application.

    Raises:
        SetupError: sqlext is not enabled in it.
    """
    installed = _installations.get(spark.sparkContext.applicationId)
    if installed is None:
        raise SetupError("sqlext is not enabled in this session. Call sqlext.enable(spark) first.")
    return installed


def host_of(spark: SparkSession) -> Host:
    """Return the host of an application's flows.

    Raises:
        SetupError: sqlext is not enabled in it.
    """
    return installation_of(spark).get_host()


def resume_all(spark: SparkSession) -> None:
    """Resume the flows and jobs of processes that have ended; its host does so with views, again and again."""
    installed, home = installation_of(spark), HadoopPath(spark, home_of(spark))
    if home.child("registry").exists():
        resumed = installed.get_host().flows.resume()
        if resumed:
            logger.info("flows resumed: %s", ", ".join(resumed))
    if home.child("views", "registry").exists():
        installed.get_host()
    options = resolve_levels(spark, session_levels(spark))
    if options[JOB_RECOVERY] and home.child("jobs", "registry").exists():
        installed.get_host().jobs.resume_all(job_statements.fingerprints, options)


def home_of(spark: SparkSession) -> str:
    """Return the location of checkpoints, buffers and the registry: `spark.sqlext.home`, or `_sqlext` in the warehouse."""
    home = spark.conf.get(HOME_KEY, None)
    return home or spark.conf.get("spark.sql.warehouse.dir").rstrip("/") + "/_sqlext"  # type: ignore[union-attr]


def registry_exists(spark: SparkSession) -> bool:
    """Return whether the home has a registry of flows."""
    return HadoopPath(spark, home_of(spark)).child("registry").exists()


def register_function(
    name: str,
    function: Callable[..., Any],
    returns: str,
    *,
    is_aggregate: bool = False,
    is_output_idempotent: bool = True,
) -> None:
    """Register a Python function as a SQL function, in every session from now on.

    Args:
        name: the function's name in SQL.
        function: called with the arguments of one row; an aggregate, with the list of a group's values, without nulls.
        returns: the type of its result as DDL, such as `DOUBLE` or `STRUCT<a: INT>`.
        is_aggregate: whether it makes one value of many rows.
        is_output_idempotent: whether the last value of a group may replace all earlier ones (FLIP-365). If False, a flow over the
            aggregate is never buffered.

    Raises:
        NameTakenError: the name is Spark's, or another function's.
    """
    registered = PythonFunction(name, function, returns, is_aggregate, is_output_idempotent)
    FUNCTIONS.add(registered)
    for installed in _installations.values():
        installed.add_function(registered)


def register_reduce_function(
    name: str, combine: Callable[[Any, Any], Any], returns: str, *, is_output_idempotent: bool = True
) -> None:
    """Register an associative Python function of two values as a SQL aggregate, in every session from now on (FLIP-365's reduce).

    sqlext.register_reduce_function("longest", lambda a, b: a if len(a) >= len(b) else b, "STRING")

    Args:
        name: the aggregate's name in SQL.
        combine: combines two values into one. It never gets a null; a group without values gives null. Values come in any order,
            so it must be commutative too where that matters.
        returns: the type of the values and of the result, as DDL.
        is_output_idempotent: as for `register_function`.

    Raises:
        SchemaError: `combine` does not take exactly two arguments.
        NameTakenError: the name is Spark's, or another function's.
    """
    reduction = Reduction(combine)
    register_function(name, reduction, returns, is_aggregate=True, is_output_idempotent=is_output_idempotent)


def register_partition_function(name: str, function: Callable[..., Any] | AggregateFunction, *, returns: str = "") -> None:
    """Register a Python function over whole partitions for SQL, in every session (FLIP-380).

    sqlext.register_partition_function("normalised", normalised, returns="id BIGINT, share DOUBLE")

    then `SELECT * FROM map_partition(TABLE(t), 'normalised')`.

    Args:
        name: the function's name, which SQL passes as a string.
        function: a function for map_partition or reduce_partition, as `PartitionWindowedDataFrame`'s methods take it; or an
            `AggregateFunction`.
        returns: the columns of its result, as DDL; omitted for reduce_partition, whose result has the columns of its input.

    Raises:
        SchemaError: the function cannot be called in the way that the operator calls it.
        NameTakenError: another function is registered under this name.
    """
    PARTITION_FUNCTIONS.add(PartitionFunction(name, function, returns))


def _check_conf(spark: SparkSession) -> None:
    for key, _ in spark.sparkContext.getConf().getAll():
        if key == LOG_FORMAT_KEY:
            raise SetupError(
                f"`{key}` is for the log that `sqlext run` and sqlext's other commands keep: give it to them by --conf. In a "
                "process of your own, give the formatter `sqlext.logs.JsonFormatter` to a handler of Python's logging."
            )
        if key.startswith(CONF_PREFIX) and key not in (HOME_KEY, CONNECTORS_KEY):
            name = key.removeprefix(CONF_PREFIX)
            if not is_option_key(name):
                known = [HOME_KEY, CONNECTORS_KEY, *(CONF_PREFIX + each for each in OPTIONS)]
                raise SetupError(f"There is no setting `{key}`.{did_you_mean(key, known)}")
            option_of(name)


def _check_delta(spark: SparkSession, extensions: Any) -> None:
    """Check that Delta is on the class path, and add its extension before our parser, so that ours ends up outermost."""
    context = spark.sparkContext
    extension = context._jvm.io.delta.sql.DeltaSparkSessionExtension  # type: ignore[union-attr]
    if not callable(extension):
        raise SetupError(
            "Delta is not on the class path of this application. Start it with sqlext.configure(builder).getOrCreate(), or put "
            f"Delta's JARs on {_DRIVER_CLASS_PATH}."
        )
    if _DELTA_EXTENSION not in (context.getConf().get("spark.sql.extensions") or ""):
        extension().apply(extensions)
