"""What all tests share: one Spark session with sqlext, and a clean one for each test that uses it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import sqlext
from sqlext.extension import session as sqlext_session
from sqlext.functions import backlog_reports
from sqlext.functions.keyed import KEYED_FUNCTIONS
from sqlext.functions.partition import PARTITION_FUNCTIONS
from sqlext.quoting import quote, quote_parts
from sqlext.spark import jvm
from sqlext.spark.storage import HadoopPath
from tests.java import share_archive
from tests.support import eventually
from tests.turns import TURNS, Recorder, Turn, turn_of_commit

_THREADS = ("sqlext-flush-", "sqlext-pace-", "sqlext-stage-", "sqlext-wait-", "sqlext-end-")
_DEADLINE = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--complete", action="store_true", help="write what comes back into the .slt and .explain.txt files")
    parser.addoption("--full", action="store_true", help="all tests and all cases, where CI takes some; an hour")
    parser.addoption("--turn", type=int, choices=range(TURNS), help="which of the slow tests run; by default, by the commit")
    parser.addoption("--record", action="store_true", help="write which tests are slow; with --full and -n 3, see tests/turns.py")
    parser.addoption("--kills", type=int, default=1, help="how often a fault test kills its process")
    parser.addoption("--state", default="rocksdb", choices=("rocksdb", "delta"), help="of test_flows; by hand, delta too")
    parser.addoption("--soak", type=float, default=20, help="seconds that a soak test lasts for each mode; by hand, 600")
    parser.addoption("--clients", type=int, default=4, help="Thrift clients side by side; by hand, 32")
    parser.addoption("--statements", type=int, default=12, help="statements of each of them; by hand, 100")
    parser.addoption("--queries", type=int, default=60, help="generated queries of the differential test; by hand, 2000")
    parser.addoption("--rounds", type=int, default=40, help="rounds of changes and views of the differential test; by hand, 2000")
    parser.addoption("--refreshes", type=int, default=3, help="of each of TPC-H's views: insert, delete, update; by hand, 10")
    parser.addoption("--groups", default="", help="of those queries, ten a group, or rounds, five a group, only some: 0-49")
    parser.addoption("--seed", type=int, default=24, help="of the differential tests' queries, rows, changes and restarts")
    parser.addoption("--cases", type=int, default=30, help="of changes that AUTO CDC applies; by hand, 500")
    parser.addoption("--sessions", type=int, default=30, help="Thrift sessions, one after the other; by hand, 2000")


def pytest_configure(config: pytest.Config) -> None:
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is None:  # not one of xdist's processes, but the one that starts them
        share_archive()
    turn = _turn(config) if workerinput is None else workerinput["turn"]
    if turn is not None:
        config.pluginmanager.register(Turn(turn))
    if workerinput is None and config.getoption("--record"):
        config.pluginmanager.register(Recorder())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of xdist, which cannot know whether the user has named tests."""
    node.workerinput["turn"] = _turn(node.config)


def _turn(config: pytest.Config) -> int | None:
    """Return which of the slow tests run; None for all that were asked for."""
    if config.getoption("--full") or config.args_source is pytest.Config.ArgsSource.ARGS:
        return None
    given: int | None = config.getoption("--turn")
    return turn_of_commit() if given is None else given


@pytest.fixture
def full(pytestconfig: pytest.Config) -> bool:
    """Whether all cases and whole counts are asked for."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture
def clients(pytestconfig: pytest.Config) -> int:
    """How many Thrift clients work side by side."""
    return int(pytestconfig.getoption("--clients"))


@pytest.fixture
def statements(pytestconfig: pytest.Config) -> int:
    """How many statements each of them runs."""
    return int(pytestconfig.getoption("--statements"))


@pytest.fixture
def sessions(pytestconfig: pytest.Config) -> int:
    """How many Thrift sessions come and go."""
    return int(pytestconfig.getoption("--sessions"))


@pytest.fixture
def state_backend(pytestconfig: pytest.Config) -> str:
    """Where flows of tests that hold for both backends have their state."""
    return str(pytestconfig.getoption("--state"))


@pytest.fixture
def kills(pytestconfig: pytest.Config) -> int:
    """How often a fault test kills its process."""
    return int(pytestconfig.getoption("--kills"))


@pytest.fixture
def soak_seconds(pytestconfig: pytest.Config) -> float:
    """How long a soak test lasts."""
    return float(pytestconfig.getoption("--soak"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process; `clean` takes away what a test leaves in it."""
    builder = cast(Any, SparkSession.builder)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "2",
        "spark.sqlext.connectors": "kafka",
        "spark.databricks.delta.snapshotPartitions": "2",  # or every commit runs 50 tasks
        "spark.driver.memory": "3g",  # for all tests one after the other, of whose past nothing is kept:
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "100",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.sql.ui.explainMode": "simple",  # each execution draws its plan for that history
        "spark.sql.codegen.cache.maxEntries": "2000",  # what Delta does at each commit is compiled once
        "spark.buffer.pageSize": "1m",  # few rows take pages of 64 MB otherwise: soak tests would see which tasks run, not growth
        # Both of Java's compilers: the first minutes are slower by a tenth, and what comes after them is faster by a third. The
        # parallel collector, with half of the heap for what is young, takes a fourteenth less of the processors' time than G1.
        # The heap is taken as a whole at the start: what the process takes later is outside of it, and soak tests look at that.
        "spark.driver.extraJavaOptions": "-Xms3g -Xmn1500m -XX:+UseParallelGC -XX:+AlwaysPreTouch "
        "-XX:MetaspaceSize=400m -XX:ReservedCodeCacheSize=512m",
    }
    for key, value in settings.items():
        builder.config(key, value)
    session = cast(SparkSession, sqlext.configure(builder.master("local[2]").appName("tests")).getOrCreate())
    session.sparkContext.setLogLevel("OFF")  # flows fail on purpose here, and the JVM logs each with a stack
    yield session
    sqlext.disable(session)
    session.stop()


@pytest.fixture(autouse=True)
def own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers, no other test sees."""
    monkeypatch.setattr(backlog_reports, "_reports", {})
    for registry in (PARTITION_FUNCTIONS, KEYED_FUNCTIONS):
        monkeypatch.setattr(registry, "_functions", dict(registry._functions))


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop the flows and tables of a test that uses `spark`, and see that no thread of theirs is left."""
    if "spark" not in request.fixturenames:
        yield
        return
    session: SparkSession = request.getfixturevalue("spark")
    settings = jvm.all_settings(session)
    yield
    _drop_flows(session)
    _drop_tables(session)
    cast(Any, session._jvm).org.apache.spark.sql.delta.DeltaLog.clearCache()  # it keeps sessions for an hour
    _restore(session, settings)
    eventually(lambda: not _threads(), _DEADLINE, lambda: f"threads left over: {', '.join(_threads())}")


def _drop_flows(session: SparkSession) -> None:
    """All flows at once, by taking their home away: dropping each would cost a second and leave the registry longer."""
    installed = sqlext_session.installation_of(session)
    if installed.host is not None:
        home = installed.host.home
        installed.close()
        HadoopPath(session, home).delete()


def _drop_tables(session: SparkSession) -> None:
    session.catalog.setCurrentCatalog("spark_catalog")
    session.catalog.setCurrentDatabase("default")
    for database in (row[0] for row in session.sql("SHOW SCHEMAS").collect()):
        if database != "default":
            session.sql(f"DROP SCHEMA {quote(database)} CASCADE")
    views = {row.viewName for row in session.sql("SHOW VIEWS").collect()}
    for row in session.sql("SHOW TABLES").collect():
        kind = "VIEW" if row.tableName in views else "TABLE"
        name = (row.tableName,) if row.isTemporary else (row.namespace, row.tableName)
        session.sql(f"DROP {kind} IF EXISTS {quote_parts(name)}")


def _restore(session: SparkSession, before: dict[str, str]) -> None:
    after = jvm.all_settings(session)
    for key in after.keys() - before.keys():
        session.conf.unset(key)
    for key, value in before.items():
        if after.get(key) != value:
            session.conf.set(key, value)


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(_THREADS)]
