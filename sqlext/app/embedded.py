"""The embedded default: Spark, its catalog and its tables in one process and one folder, which persists between runs.

<warehouse>/            tables
<warehouse>/_metastore/ the catalog (Derby), and the lock that admits one process at a time
<warehouse>/_sqlext/    what flows need to resume, and sqlext.log: all that Spark, Hive and Java would print on a terminal, and
                        Python's log; with `spark.sqlext.log.format` = json, that is in sqlext.jsonl
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import sqlext
from sqlext.app.problems import silence_spark
from sqlext.app.warehouse_lock import JVM_ENDS_WITHIN, WarehouseLock
from sqlext.errors import SetupError, SqlextError
from sqlext.extension.jars import is_cluster
from sqlext.logs import JsonFormatter
from sqlext.options import CONF_PREFIX, CONNECTORS_KEY, LOG_FORMAT_KEY, LOG_FORMATS, is_option_key
from sqlext.private_files import make_private_file
from sqlext.redaction import RedactedFormatter
from sqlext.spark.failures import root_reason

logger = logging.getLogger(__name__)

_LOG_LIMIT = 10 * 1024**2


@contextmanager
def embedded_session(
    warehouse: Path,
    conf: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
    lock: WarehouseLock | None = None,
) -> Iterator[SparkSession]:
    """Open a session with sqlext over a warehouse folder; at the end, flush and stop its flows and end Java.

    Args:
        warehouse: the folder, created if missing.
        conf: Spark settings in addition to sqlext's.
        progress: called with a line of text for each step that takes long.
        lock: of the warehouse, if the caller holds it.

    Raises:
        SetupError: the folder cannot be used or another process uses it, Java or a JAR is missing, or a setting is wrong.
    """
    folder = warehouse.absolute()
    given = checked(conf or {})
    settings = {**_settings(folder, is_cluster(given.get("spark.master"))), **given}
    with WarehouseLock(warehouse, progress) if lock is None else nullcontext(lock) as held:
        log = _open_log(folder, settings.pop(LOG_FORMAT_KEY, LOG_FORMATS[0]).strip().lower())
        connectors = settings[CONNECTORS_KEY] = _all_connectors(folder, settings.get(CONNECTORS_KEY, ""))
        spark = _start(folder, settings, log, held.number, progress)
        gateway = SparkContext._gateway  # noqa: SLF001  # has no public name
        try:
            _remember(folder, connectors)  # not before: one that does not exist would stop every later start
            yield spark
        finally:
            _end(spark, gateway)
            shutil.rmtree(folder / "_metastore" / "tmp", ignore_errors=True)


def has_work(warehouse: Path) -> bool:
    """Return whether flows, views or jobs were ever created in a warehouse, without Spark."""
    home = warehouse / "_sqlext"
    return any((home / name / "registry").is_dir() for name in ("", "views", "jobs"))


def _all_connectors(folder: Path, given: str) -> str:
    """Return all connectors that this warehouse was ever started with: the flows that resume may need them."""
    return ",".join(sorted({each.strip() for each in f"{_known_connectors(folder)},{given}".split(",") if each.strip()}))


def _known_connectors(folder: Path) -> str:
    file = folder / "_sqlext" / "connectors"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _remember(folder: Path, connectors: str) -> None:
    if connectors != _known_connectors(folder):
        file = folder / "_sqlext" / "connectors"
        make_private_file(file)
        file.write_text(connectors, encoding="utf-8")


def java_has_ended(spark: SparkSession) -> bool:
    """Return whether the JVM of an embedded session has ended: killed, or out of memory."""
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001  # pyspark's handle on the JVM
    return process.poll() is not None


def log_path(warehouse: Path, log_format: str = "") -> Path:
    """Return the path of a warehouse's log: that of Java, or if Python's log has a format of its own, that of Python."""
    return warehouse.absolute() / "_sqlext" / ("sqlext.jsonl" if log_format.strip().lower() == "json" else "sqlext.log")


# Settings.


def _settings(folder: Path, on_cluster: bool) -> dict[str, str]:
    scratch = folder / "_metastore" / "tmp"
    of_one_machine = {
        "spark.master": "local[*]",
        "spark.driver.host": "127.0.0.1",  # one process, which must not depend on the machine's name and network
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),  # Spark's default of 200 is for clusters
        "spark.databricks.delta.snapshotPartitions": "2",  # so is Delta's default of 50
    }
    return {
        **({} if on_cluster else of_one_machine),
        "spark.app.name": "sqlext",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",  # jobs that survive their driver share the machine with flows, in a pool of their own
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder),
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=catalog;create=true",
        "spark.hadoop.hive.exec.scratchdir": str(scratch),
        "spark.hadoop.hive.exec.local.scratchdir": str(scratch),
        # One per session, as in Hive: a session deletes its folder when it ends, and two that create the same one at once fail.
        "spark.hadoop.hive.downloaded.resources.dir": f"{scratch}/${{hive.session.id}}_resources",
    }


def checked(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Return Spark settings as they are.

    Raises:
        SetupError: one of them is none, or cannot be given.
    """
    for key in conf:
        if is_option_key(key):
            raise SetupError(f"`{key}` is an option of sqlext. As a Spark setting it is called `{CONF_PREFIX}{key}`.")
        if not key.startswith("spark."):
            raise SetupError(f"`{key}` is not a Spark setting: those begin with `spark.`, and Spark ignores all others.")
        if key == LOG_FORMAT_KEY and conf[key].strip().lower() not in LOG_FORMATS:
            raise SetupError(f"`{key}` cannot be `{conf[key]}`. Give {' or '.join(f'`{each}`' for each in LOG_FORMATS)}.")
        if key == "spark.sql.warehouse.dir":
            raise SetupError(f"`{key}` is the warehouse folder itself. Set it by --warehouse.")
    return conf


# The log.


def _open_log(folder: Path, log_format: str) -> IO[bytes]:
    """Open the file for all that Java prints, and Python's log: the same file, or as JSON, one with nothing else in it.

    A file that has grown big is first renamed to sqlext.log.1.
    """
    path, python = log_path(folder), log_path(folder, log_format)
    for each in {path, python}:
        with suppress(FileNotFoundError):
            if each.stat().st_size > _LOG_LIMIT:
                each.replace(each.with_name(f"{each.name}.1"))
        make_private_file(each)
    handler = logging.FileHandler(python, encoding="utf-8")
    text = RedactedFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(text if python == path else JsonFormatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger("sqlext").setLevel(logging.INFO)
    logging.captureWarnings(True)
    silence_spark()
    return path.open("ab")


# Spark.


def _start(
    folder: Path, settings: Mapping[str, str], log: IO[bytes], lock: int, progress: Callable[[str], None] | None
) -> SparkSession:
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    builder = sqlext.configure(builder, progress)
    conf = SparkConf(loadDefaults=False).setAll(list(builder._options.items()))  # noqa: SLF001  # the builder has no public way to read them
    # In a session of its own, Java gets no Ctrl-C or hang-up from the terminal; it ends when its stdin does.
    before = log_path(folder).stat().st_size
    popen = {"stdout": log, "stderr": log, "pass_fds": (lock,), "start_new_session": True}
    try:
        gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001  # getOrCreate takes no gateway
        derby = {"derby.system.home": folder / "_metastore", "derby.stream.error.file": folder / "_metastore" / "derby.log"}
        for key, path in derby.items():
            gateway.jvm.java.lang.System.setProperty(key, str(path))
        session: SparkSession = builder.getOrCreate()
    except SqlextError as error:
        raise SetupError(error.message) from None
    except (PySparkException, Py4JError) as error:
        has_ended = "JAVA_GATEWAY_EXITED" in str(error)
        reason = _last_words(log_path(folder).read_bytes()[before:].decode(errors="replace")) if has_ended else root_reason(error)
        logger.exception("Spark did not start")
        raise SetupError(f"Spark did not start: {reason.rstrip('.')}. See {log_path(folder)} for more.") from None
    return session


def _last_words(log: str) -> str:
    """Return why a JVM ended before the first call: its first error, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    complaint = next((line for line in lines if re.search(r"\b(error|invalid|\w*exception)\b", line, re.IGNORECASE)), None)
    return complaint or (lines[-1] if lines else "Java ended at once")


def _end(spark: SparkSession, gateway: Any) -> None:
    """Stop the flows, Spark and Java. If Java has died already, there is nothing to stop."""
    atexit.unregister(sqlext.disable)
    try:
        if not java_has_ended(spark):
            sqlext.disable(spark)
            spark.stop()
    except (PySparkException, Py4JError, OSError):
        logger.exception("Spark did not stop cleanly")
    with suppress(Exception):
        _wake_callback_threads(gateway)
        gateway.shutdown()
    with suppress(Exception):
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=JVM_ENDS_WITHIN)


def _wake_callback_threads(gateway: Any) -> None:
    """End the reads of the threads that wait for calls from Java.

    Py4J closes a connection's stream before its socket. Closing a stream that a thread still reads from waits for that thread,
    and so forever while Java keeps the connection open.
    """
    for connection in list(gateway.get_callback_server().connections):
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
