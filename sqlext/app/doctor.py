"""`sqlext doctor`: looks at what sqlext needs, one thing after the other, and says what to do."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.app.embedded import embedded_session, log_path
from sqlext.app.output import Printer
from sqlext.app.warehouse_lock import holder_of
from sqlext.errors import SetupError, SqlextError
from sqlext.execution.coordination import home_checks
from sqlext.execution.flows.registry import FlowRegistry
from sqlext.execution.jobs.registry import JobRegistry
from sqlext.execution.views.registry import ViewRegistry, created
from sqlext.extension import jars
from sqlext.extension.jars import is_cluster
from sqlext.options import HOME_KEY
from sqlext.server.server import hive_settings
from sqlext.spark.failures import reason_of
from sqlext.spark.process import java_figures
from sqlext.spark.storage import HadoopPath

_GIB = 1024**3
_LEAST_DISK = 1 * _GIB
_BESIDE_JAVA = 1 * _GIB
"""The memory that Python, and Java outside of its heap, take."""


class State(Enum):
    """How something is; the value is how it is printed."""

    GOOD = "ok"
    WARNING = "warning"
    WRONG = "wrong"


_STYLES = {State.GOOD: "green", State.WARNING: "yellow", State.WRONG: "bold red"}


@dataclass(frozen=True)
class Finding:
    """What was found when something was looked at.

    Attributes:
        what: the thing.
        text: what was found.
        remedy: what to do; empty: nothing need be done.
    """

    what: str
    state: State
    text: str
    remedy: str = ""


Look = Callable[[], Finding]


def run_doctor(printer: Printer, warehouse: Path, conf: Mapping[str, str]) -> int:
    """Print all findings; return the exit code."""
    states = []
    for finding in examine(warehouse, hive_settings(conf)):
        states.append(finding.state)
        printer.line(f"{finding.state.value:8} {finding.what}: {finding.text}", _STYLES[finding.state])
        if finding.remedy:
            printer.line(f"         {finding.remedy}")
    return int(State.WRONG in states)


def examine(warehouse: Path, conf: Mapping[str, str]) -> Iterator[Finding]:
    """Look at everything; what needs Spark is left out where Spark does not start."""
    yield Finding("versions", State.GOOD, ", ".join(f"{name} {version(name)}" for name in ("sqlext", "pyspark", "delta-spark")))
    before_spark: tuple[tuple[str, Look], ...] = (
        ("Java", _java),
        ("Delta's JARs", lambda: _jars(conf)),
        ("disk", lambda: _disk(warehouse)),
        ("warehouse", lambda: _warehouse(warehouse)),
    )
    findings = [_looked(what, look) for what, look in before_spark]
    yield from findings
    if any(finding.state is State.WRONG for finding in findings):
        yield Finding("Spark", State.WARNING, "not started, because of the above", "Mend that, and run sqlext doctor again.")
        return
    home = conf.get(HOME_KEY) or f"{warehouse.absolute()}/_sqlext"
    try:
        # with another home, in which there is no flow that a session would resume
        with (
            TemporaryDirectory(prefix="sqlext-doctor-") as empty,
            embedded_session(warehouse, {**conf, HOME_KEY: empty}) as spark,
        ):
            for what, look in _with_spark(spark, HadoopPath(spark, home), Path(empty)):
                yield _looked(what, look)
    except SetupError as error:
        yield Finding("Spark", State.WRONG, error.message, f"The log is {log_path(warehouse)}.")


def _with_spark(spark: SparkSession, home: HadoopPath, scratch: Path) -> Iterator[tuple[str, Look]]:
    yield "memory", lambda: _memory(spark)
    yield "catalog", lambda: _catalog(spark)
    if is_cluster(spark.sparkContext.master):  # its executors cannot write into a folder of this machine
        yield "executors", lambda: _executors(spark, home)
    else:
        yield "tables", lambda: _tables(spark, scratch)
    yield "home", lambda: _home(home)
    yield "clocks", lambda: _clocks(home)
    yield "flows, views and jobs", lambda: _records(home)


def _looked(what: str, look: Look) -> Finding:
    try:
        return look()
    except SqlextError as error:
        return Finding(what, State.WRONG, error.message)
    except (PySparkException, Py4JError, OSError) as error:
        return Finding(what, State.WRONG, reason_of(error))


# On the machine.


def _java() -> Finding:
    return Finding("Java", State.GOOD, str(jars.check_java()))


def _jars(conf: Mapping[str, str]) -> Finding:
    """Look where `sqlext.configure` takes them from."""
    if (giver := jars.delta_given_by(conf)) is not None:
        return Finding("Delta's JARs", State.GOOD, f"given by {giver}")
    found = jars.delta_class_path(None, conf.get("spark.jars.ivySettings"))
    return Finding("Delta's JARs", State.GOOD, f"{found}, with the digests that sqlext knows")


def _disk(warehouse: Path) -> Finding:
    there = next(folder for folder in (warehouse.absolute(), *warehouse.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    text = f"{free / _GIB:.1f} GiB are free at {there}"
    if free < _LEAST_DISK:
        return Finding("disk", State.WRONG, text, "Make room, or choose another folder by --warehouse.")
    return Finding("disk", State.GOOD, text)


def _warehouse(warehouse: Path) -> Finding:
    folder = warehouse.absolute()
    pid = holder_of(folder)
    if pid is not None:
        remedy = "Its flows, views and jobs are on its page, if it has one; or end it, and run sqlext doctor again."
        return Finding("warehouse", State.WRONG, f"{folder} is in use by process {pid}", remedy)
    return Finding("warehouse", State.GOOD, f"{folder}{'' if folder.exists() else ', which does not exist yet'}")


# With Spark.


def _memory(spark: SparkSession) -> Finding:
    heap, there = java_figures(spark).heap_most, _memory_there()
    text = f"Java's heap may have {heap / _GIB:.1f} GiB of {there / _GIB:.1f}"
    if heap + _BESIDE_JAVA > there:
        remedy = "Set a smaller spark.driver.memory by --conf, or give the machine more: the system may end the process."
        return Finding("memory", State.WARNING, text, remedy)
    return Finding("memory", State.GOOD, text)


def _memory_there() -> int:
    """Return the bytes of memory that this process may use: of the machine, or of its control group."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return whole
    return min(whole, int(limit)) if limit.isdigit() else whole


def _catalog(spark: SparkSession) -> Finding:
    schemas = spark.sql("SHOW SCHEMAS").count()
    return Finding("catalog", State.GOOD, f"{schemas} schemas")


def _tables(spark: SparkSession, scratch: Path) -> Finding:
    location = str(scratch / "table")
    spark.range(3).write.format("delta").save(location)
    found = spark.read.format("delta").load(location).count()
    if found != 3:
        return Finding("tables", State.WRONG, f"a Delta table with 3 rows was written, and {found} rows were read")
    return Finding("tables", State.GOOD, "a Delta table was written and read")


def _executors(spark: SparkSession, home: HadoopPath) -> Finding:
    home_checks.check_is_shared(spark, home)
    return Finding("executors", State.GOOD, f"what they write below {home.location} is seen here")


def _home(home: HadoopPath) -> Finding:
    home.make()
    told = home_checks.writers_told(home)
    if any(each != 1 for each in told):
        text = f"{home.location}: of writers that create one file at once, {', '.join(map(str, told))} were told that they did"
        remedy = "Two drivers could both run a flow: use another storage, or set the log store that Delta has for this one."
        return Finding("home", State.WRONG, text, remedy)
    return Finding("home", State.GOOD, f"{home.location}; of writers that create one file at once, one succeeds")


def _clocks(home: HadoopPath) -> Finding:
    difference, ahead = home_checks.clock_difference(home), home_checks.hosts_ahead(home)
    texts = [] if difference is None else [f"the storage's clock differs by {abs(difference):.0f} s"]
    texts += [f"that of {host} is ahead by {seconds:.0f} s" for host, seconds in ahead.items()]
    worst = max([abs(difference or 0.0), *ahead.values()])
    if worst >= home_checks.MOST_DIFFERENCE:
        return Finding("clocks", State.WRONG, "; ".join(texts), "Let all machines take their time from one server (NTP).")
    return Finding("clocks", State.GOOD, "; ".join(texts) or "the storage does not tell the time")


def _records(home: HadoopPath) -> Finding:
    flows, jobs = FlowRegistry(home).read(), JobRegistry(home).read()
    parts = [_counted(len(flows), "flows", (record.state.value for record in flows.values()))]
    parts.append(f"{len(created(ViewRegistry(home).read()))} materialized views")
    parts.append(_counted(len(jobs), "jobs", (record.state.value for record in jobs.values())))
    failed = [f"{record.spec.name} ({record.error})" for record in flows.values() if record.has_failed]
    if failed:
        return Finding("flows, views and jobs", State.WARNING, ", ".join(parts), f"Failed: {'; '.join(failed)}")
    return Finding("flows, views and jobs", State.GOOD, ", ".join(parts))


def _counted(number: int, what: str, states: Iterator[str]) -> str:
    by_state = ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items()))
    return f"{number} {what}" + (f" ({by_state})" if by_state else "")
