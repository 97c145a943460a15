"""The embedded default: Spark, its catalog and its tables in one process and one folder that keeps them between runs.

<warehouse>/            tables
<warehouse>/_metastore/ the catalog (Derby), and the lock that lets one process in at a time
<warehouse>/_sqlext/    what flows need to go on, and sqlext.log: all that Spark, Hive and Java would print on a terminal
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import sqlext
from sqlext.clock import Deadline
from sqlext.errors import SetupError, SqlextError
from sqlext.options import CONF_PREFIX, CONNECTORS_KEY, is_option_key
from sqlext.private_files import make_private_file, make_private_folder
from sqlext.redaction import RedactedFormatter
from sqlext.spark.jvm import root_reason

logger = logging.getLogger(__name__)

_JVM_ENDS_WITHIN = 30.0
"""Seconds after which a JVM whose Python process is gone has ended."""
_LOG_LIMIT = 10 * 1024**2


@contextmanager
def embedded_session(
    warehouse: Path, conf: Mapping[str, str] | None = None, progress: Callable[[str], None] | None = None
) -> Iterator[SparkSession]:
    """A session with sqlext over a warehouse folder. At the end its flows are stopped, flushed, and Java has ended.

    Args:
        warehouse: made when it is not there.
        conf: Spark settings on top of ours.
        progress: told, line by line, what takes long.

    Raises:
        SetupError: the folder cannot be used or another process uses it, Java or a JAR is missing, or a setting is wrong.
    """
    if ":/" in str(warehouse):
        raise SetupError(f"The warehouse is a local folder, not {warehouse}. For other storage use sqlext.configure(builder).")
    folder = warehouse.absolute()
    settings = {**_settings(folder), **_checked(conf or {})}
    _make_folders(folder)
    with _Lock(folder / "_metastore" / "lock", progress) as lock:
        log = _open_log(folder)
        settings[CONNECTORS_KEY] = _remembered_connectors(folder, settings.get(CONNECTORS_KEY, ""))
        spark = _start(folder, settings, log, lock, progress)
        gateway = SparkContext._gateway  # noqa: SLF001  # has no public name
        try:
            yield spark
        finally:
            _end(spark, gateway)
            shutil.rmtree(folder / "_metastore" / "tmp", ignore_errors=True)


def has_flows(warehouse: Path) -> bool:
    """Whether flows were ever made in a warehouse; asks no Spark."""
    return (warehouse / "_sqlext" / "registry").is_dir()


def _remembered_connectors(folder: Path, given: str) -> str:
    """The connectors that this warehouse was ever started with: its flows, which are resumed, may need them."""
    file = folder / "_sqlext" / "connectors"
    known = file.read_text(encoding="utf-8") if file.exists() else ""
    names = ",".join(sorted({each.strip() for each in f"{known},{given}".split(",") if each.strip()}))
    if names != known:
        make_private_file(file)
        file.write_text(names, encoding="utf-8")
    return names


def java_has_ended(spark: SparkSession) -> bool:
    """Whether the JVM of an embedded session is gone: killed, or out of memory."""
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001  # pyspark's handle on the JVM
    return process.poll() is not None


def log_path(warehouse: Path) -> Path:
    """Where the log of a warehouse lies."""
    return warehouse.absolute() / "_sqlext" / "sqlext.log"


# Settings.


def _settings(folder: Path) -> dict[str, str]:
    scratch = folder / "_metastore" / "tmp"
    return {
        "spark.app.name": "sqlext",
        "spark.master": "local[*]",
        "spark.driver.host": "127.0.0.1",  # one process: whatever the machine's name resolves to, on whatever network
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",  # a job that survives its driver shares the machine with flows, from a pool of its own
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),  # Spark's own 200 are for clusters
        "spark.databricks.delta.snapshotPartitions": "2",  # Delta's own 50 as well
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder),
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=catalog;create=true",
        "spark.hadoop.hive.exec.scratchdir": str(scratch),
        "spark.hadoop.hive.exec.local.scratchdir": str(scratch),
        # As in Hive, one for each session: a session deletes its own when it ends, and two at once fail to make the same.
        "spark.hadoop.hive.downloaded.resources.dir": f"{scratch}/${{hive.session.id}}_resources",
    }


def _checked(conf: Mapping[str, str]) -> Mapping[str, str]:
    for key in conf:
        if is_option_key(key):
            raise SetupError(f"`{key}` is an option of sqlext; as a Spark setting it is called `{CONF_PREFIX}{key}`.")
        if not key.startswith("spark."):
            raise SetupError(f"`{key}` is no Spark setting: those begin with `spark.`, and Spark ignores all others.")
        if key == "spark.sql.warehouse.dir":
            raise SetupError(f"`{key}` is the warehouse folder itself. Use --warehouse.")
    return conf


# The folder.


def _make_folders(folder: Path) -> None:
    try:
        for name in ("_metastore", "_sqlext"):
            make_private_folder(folder / name)
    except OSError as error:
        raise SetupError(f"The warehouse folder {folder} cannot be used: {error.strerror}.") from None


class _Lock:
    """One process for one warehouse: Derby takes no more. This process holds it and, through the file that it inherits, its JVM;
    so it is free when both have ended, however they ended.
    """

    def __init__(self, path: Path, progress: Callable[[str], None] | None) -> None:
        self._path = path
        self._progress = progress
        self._file: IO[str] | None = None

    def __enter__(self) -> int:
        try:
            self._file = self._path.open("a+")
        except OSError as error:
            raise SetupError(f"The warehouse folder {self._path.parent.parent} cannot be used: {error.strerror}.") from None
        deadline = Deadline(_JVM_ENDS_WITHIN)
        while not self._take():
            pid = self._path.read_text().strip()
            if _is_process(pid) or deadline.has_passed:
                raise SetupError(
                    f"The warehouse {self._path.parent.parent} is in use by process {pid or '(unknown)'}. Its catalog takes one "
                    "process at a time: end that one first, or choose another folder with --warehouse."
                )
            if self._progress is not None:
                self._progress(f"waiting for what process {pid} left behind to end")
                self._progress = None
            time.sleep(0.2)
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()
        return self._file.fileno()

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _take(self) -> bool:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _is_process(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _open_log(folder: Path) -> IO[bytes]:
    """One file for Python's log and for all that Java prints. It starts anew, keeping the last one, when it has grown big."""
    path = log_path(folder)
    with suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_LIMIT:
            path.replace(path.with_suffix(".log.1"))
    make_private_file(path)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(RedactedFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("sqlext").setLevel(logging.INFO)
    logging.captureWarnings(True)
    for name in (
        "SQLQueryContextLogger",
        "DataFrameQueryContextLogger",
    ):  # they print each error as JSON before it is even raised
        PySparkLogger.getLogger(name).disabled = True
    return path.open("ab")


# Spark.


def _start(
    folder: Path, settings: Mapping[str, str], log: IO[bytes], lock: int, progress: Callable[[str], None] | None
) -> SparkSession:
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    builder = sqlext.configure(builder, progress)
    conf = SparkConf(loadDefaults=False).setAll(list(builder._options.items()))  # noqa: SLF001  # the builder cannot be read otherwise
    # Java gets a session of its own: no Ctrl-C or hang-up of the terminal reaches it, it ends when its stdin does.
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
        raise SetupError(f"Spark did not start: {reason.rstrip('.')}. More is in {log_path(folder)}.") from None
    return session


def _last_words(log: str) -> str:
    """Why a JVM ended before it could be asked anything: its first complaint, or the last it said."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    complaint = next((line for line in lines if re.search(r"\b(error|invalid|\w*exception)\b", line, re.IGNORECASE)), None)
    return complaint or (lines[-1] if lines else "Java ended at once")


def _end(spark: SparkSession, gateway: Any) -> None:
    """Stop flows, Spark and Java. Where Java has died already, there is nothing to stop."""
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
        gateway.proc.wait(timeout=_JVM_ENDS_WITHIN)


def _wake_callback_threads(gateway: Any) -> None:
    """End the reads of the threads that wait for Java's calls.

    Py4J closes a connection's stream first and its socket then. Closing a stream that a thread still reads from waits for that
    thread, and so for ever when Java keeps the connection open.
    """
    for connection in list(gateway.get_callback_server().connections):
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
