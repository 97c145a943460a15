"""The dbt package: what a run does to flows and views, in this process; then the example, over Thrift and by `sqlext dbt`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyhive import hive
from pyspark.sql import SparkSession

from sqlext.commands import flow_tables
from sqlext.execution.jobs import sink
from tests.dbt_project import Project, example, new_project
from tests.integration.workshop import Workshop
from tests.java import ONE_TIER
from tests.support import eventually

DEADLINE = 600.0
FULL_NAME = list(flow_tables._FLOWS).index("full_name")
"""The place of the column in SHOW FLOWS: a client over Thrift gets tuples."""

pytestmark = pytest.mark.timeout(2 * DEADLINE)

COUNTS = """
{{ config(materialized='streaming_table', flush_interval='10 minutes', on_schema_change='append_new_columns', wait=true) }}
select k, count(*) as n from stream events.ev group by k
"""
TOTALS = """
{{ config(materialized='materialized_view', schedule={'every': '2 hours'}, on_configuration_change='fail') }}
select k, sum(v) as total from events.ev group by k
"""
DESCRIBED = """
models:
  - name: totals
    description: Totals of each, and "it's" all.
    config: {persist_docs: {relation: true, columns: true}}
    columns: [{name: K, description: The key.}]
"""


@pytest.fixture
def sql(spark: SparkSession) -> Workshop:
    workshop = Workshop(spark)
    workshop("CREATE SCHEMA events")
    workshop.source("events.ev")
    return workshop


@pytest.fixture
def project(tmp_path: Path, sql: Workshop) -> Project:
    made = new_project(tmp_path / "project")
    made.write("models/counts.sql", COUNTS)
    assert made("run") == {"counts": "OK"}
    return made


def epoch(sql: Workshop) -> tuple[str, str]:
    """The flow's id, and how often it was started."""
    rows = {row.property: row.value for row in sql("DESCRIBE FLOW models.counts")}
    return rows["id"], rows["epoch"]


def test_an_unchanged_model_leaves_its_flow_alone_and_options_are_altered(sql: Workshop, project: Project) -> None:
    before = epoch(sql)
    assert sql.batch("SELECT * FROM models.counts") == [("a", 1), ("b", 1), (None, 1)]
    sql("INSERT INTO events.ev VALUES ('a', 7)")
    project.edit("models/counts.sql", "from stream", "-- how often each was seen\n  from   stream")
    assert project("run") == {"counts": "unchanged"}
    assert epoch(sql) == before
    assert sql.batch("SELECT * FROM models.counts") == [("a", 2), ("b", 1), (None, 1)]

    project.edit("models/counts.sql", "10 minutes", "20 minutes")
    sql("STOP FLOW models.counts")
    assert project("run") == {"counts": "altered, started"}
    assert epoch(sql) == (before[0], str(int(before[1]) + 1))
    options = {row.property: row.value for row in sql("DESCRIBE FLOW models.counts")}
    assert options["option execution.flush.max-interval"] == "20 minutes (table property)"
    assert project("run") == {"counts": "unchanged"}


def test_a_changed_query_is_taken_in_place_as_far_as_the_model_allows(sql: Workshop, project: Project) -> None:
    before = epoch(sql)
    project.edit("models/counts.sql", "k, count", "k, max(v) as most, count")
    assert project("run") == {"counts": "`most` added, computed over the history, altered: sqlext.dbt.fingerprint"}
    assert epoch(sql)[0] == before[0]
    assert sql.batch("SELECT k, most, n FROM models.counts") == [("a", 1, 1), ("b", 2, 1), (None, 3, 1)]
    assert project("run") == {"counts": "unchanged"}
    before = epoch(sql)
    project.edit("models/counts.sql", r"max\(v\) as most, ", "")
    (said,) = project("run", fails=True).values()
    assert "The columns of models.counts would change (gone: most), and `on_schema_change` is `append_new_columns`" in said
    project.edit("models/counts.sql", "wait=true", "wait=true, on_configuration_change='continue'")
    assert project("run") == {"counts": "unchanged"}
    project.edit("models/counts.sql", "'continue'", "'fail'")
    (said,) = project("run", fails=True).values()
    assert "The query of models.counts has changed, and `on_configuration_change` is `fail`" in said
    assert epoch(sql) == before
    assert project("run", "--full-refresh") == {"counts": "OK"}
    assert sql.batch("SELECT * FROM models.counts") == [("a", 1), ("b", 1), (None, 1)]


def test_a_table_whose_flow_is_gone_is_computed_anew_only_when_asked(sql: Workshop, project: Project) -> None:
    """Its streams may no longer hold all that it was made of."""
    project("run-operation", "sqlext.drop_flow", "--args", "{name: counts}")
    sql("DELETE FROM events.ev WHERE k = 'a'")
    (said,) = project("run", fails=True).values()
    assert "There is a table models.counts already, and the flow that made it is not there" in said
    assert sql.batch("SELECT * FROM models.counts") == [("a", 1), ("b", 1), (None, 1)]
    assert project("run", "--full-refresh") == {"counts": "OK"}
    assert sql.batch("SELECT * FROM models.counts") == [("b", 1), (None, 1)]


def test_other_flows_into_the_table_are_waited_for_and_left_alone(sql: Workshop, project: Project) -> None:
    model = "{{ config(materialized='streaming_table', wait=true) }} select k, v from stream events.ev"
    project.write("models/counts.sql", model)
    assert project("run", "--full-refresh") == {"counts": "OK"}
    sql.source("events.more")
    sql("CREATE FLOW models.also AS INSERT INTO models.counts SELECT k, v FROM STREAM events.more")
    sql("WAIT FLOW models.also")
    sql("STOP FLOW models.counts")
    project.edit("models/counts.sql", "wait=true", "wait=true, flush_interval='10 minutes'")
    assert project("run") == {"counts": "altered, started"}
    options = {row.property for row in sql("DESCRIBE FLOW models.also")}
    assert not any(option.startswith("option execution.flush.max-interval") for option in options)
    sql.freeze()  # nothing is flushed for being due or idle
    sql("INSERT INTO events.ev VALUES ('c', 1)")
    sql("INSERT INTO events.more VALUES ('d', 1)")
    assert project("run") == {"counts": "unchanged"}
    assert sql.batch("SELECT k FROM models.counts WHERE k >= 'c'") == [("c",), ("d",)]


def test_what_cannot_be_taken_in_place_is_computed_anew_only_when_asked(sql: Workshop, project: Project) -> None:
    before = epoch(sql)
    project.edit("models/counts.sql", "select k", "select upper(k) as k")
    project.edit("models/counts.sql", "group by k", "group by upper(k)")
    (said,) = project("run", fails=True).values()
    assert "was made from another definition: the query differs. It cannot be changed in place: " in said
    assert epoch(sql) == before
    assert sql.batch("SELECT * FROM models.counts") == [("a", 1), ("b", 1), (None, 1)]
    assert project("run", "--full-refresh") == {"counts": "OK"}
    assert epoch(sql)[0] != before[0]
    assert sql.batch("SELECT * FROM models.counts") == [("A", 1), ("B", 1), (None, 1)]


def test_expectations_of_appended_rows_are_altered_in_place(sql: Workshop, project: Project) -> None:
    model = "{{ config(materialized='streaming_table', wait=true) }} select k, v from stream events.ev"
    project.write("models/counts.sql", model)
    assert project("run", "--full-refresh") == {"counts": "OK"}
    before = epoch(sql)
    project.edit(
        "models/counts.sql", "wait=true", "wait=true, expectations={'small': {'expect': 'v < 5', 'on_violation': 'drop row'}}"
    )
    assert project("run") == {"counts": "altered: sqlext.dbt.fingerprint, sqlext.expect.small"}
    sql("INSERT INTO events.ev VALUES ('c', 4), ('c', 7)")
    sql("WAIT FLOW models.counts")
    assert epoch(sql)[0] == before[0]
    assert sql.batch("SELECT * FROM models.counts") == [("a", 1), ("b", 2), ("c", 4), (None, 3)]


def test_what_is_no_flows_is_taken_only_when_asked(sql: Workshop, project: Project) -> None:
    project("run-operation", "sqlext.drop_flow", "--args", "{name: counts, drop_table: true}")
    assert sql("SHOW FLOWS") == []
    sql("CREATE TABLE models.counts (k STRING) USING parquet")
    (said,) = project("run", fails=True).values()
    assert "There is a table models.counts already, which no flow has created" in said
    assert project("run", "--full-refresh") == {"counts": "OK"}
    project.edit("models/counts.sql", "streaming_table", "bounded_table")
    (said,) = project("run", fails=True).values()
    assert "needs GLOBAL WINDOW END OF STREAM" in said
    project.edit("models/counts.sql", "group by k", "group by k global  window\nend of stream")
    (said,) = project("run", fails=True).values()
    assert "A flow keeps models.counts up to date" in said
    project("run-operation", "sqlext.drop_flow", "--args", "{name: counts}")
    assert project("run") == {"counts": "OK"}
    assert sql.batch("SELECT * FROM models.counts") == [("a", 1), ("b", 1), (None, 1)]
    assert sql("SHOW JOBS") == []
    project.edit("models/counts.sql", "wait=true", "recovery=true")
    assert project("run") == {"counts": "OK"}
    (job,) = sql("SHOW JOBS")
    assert (job.status, job.target) == ("FINISHED", "spark_catalog.models.counts")


def test_the_next_run_resumes_the_job_of_a_run_that_died(sql: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the table was there before; what has arrived since is left to the run after it."""
    made = new_project(tmp_path / "bounded")
    model = "select k, count(*) as n from stream events.ev group by k global window end of stream"
    made.write("models/counts.sql", "{{ config(materialized='bounded_table', recovery=true) }} " + model)
    assert made("run") == {"counts": "OK"}
    sql("INSERT INTO events.ev VALUES ('a', 7)")
    fill = sink.fill

    def die(*given: Any) -> None:
        raise LookupError("killed")  # no error of a job: its driver is gone

    monkeypatch.setattr(sink, "fill", die)
    made("run", fails=True)
    monkeypatch.setattr(sink, "fill", fill)
    sql.crash()
    (lost, _) = sql("SHOW JOBS")
    assert lost.status == "LOST"
    sql("INSERT INTO events.ev VALUES ('a', 8)")
    assert made("run") == {"counts": "OK"}
    assert sql.batch("SELECT * FROM models.counts") == [("a", 2), ("b", 1), (None, 1)]
    latest = sql("SHOW JOBS")[0]
    assert (latest.id, latest.status) == (lost.id, "FINISHED")
    assert made("run") == {"counts": "OK"}
    assert sql.batch("SELECT * FROM models.counts") == [("a", 3), ("b", 1), (None, 1)]


def test_what_is_in_the_way_goes_only_when_the_query_is_taken(sql: Workshop, project: Project) -> None:
    project("run-operation", "sqlext.drop_flow", "--args", "{name: counts, drop_table: true}")
    project.edit("models/counts.sql", "from stream", "from")
    for kind, ways in (("VIEW", ()), ("TABLE", ("--full-refresh",))):
        sql(f"CREATE {kind} models.counts AS SELECT 'mine' AS k")
        (said,) = project("run", *ways, fails=True).values()
        assert "reads no stream" in said
        assert sql.batch("SELECT k FROM models.counts") == [("mine",)]
        if kind == "VIEW":
            sql("DROP VIEW models.counts")
    project.edit("models/counts.sql", "from events", "from stream events")
    assert project("run", "--full-refresh") == {"counts": "OK"}
    assert sql.batch("SELECT * FROM models.counts") == [("a", 1), ("b", 1), (None, 1)]


def test_a_test_waits_for_the_flow_and_tells_what_is_wrong(sql: Workshop, project: Project) -> None:
    project.write("models/batch.sql", "select k, count(*) as n from events.ev group by k")
    data_tests = "[sqlext.flushed, sqlext.flushed_equals: {arguments: {compare_model: ref('batch')}}]"
    project.write("models/models.yml", f"models: [{{name: counts, data_tests: {data_tests}}}]")
    project("run", "--select", "batch")
    sql.freeze()  # nothing is flushed for being due or idle
    sql("INSERT INTO events.ev VALUES ('a', 7), ('c', 8)")
    assert set(project("test").values()) == {"pass"}
    sql("DELETE FROM models.counts WHERE k = 'c'")
    said = project("test", fails=True)
    assert said["sqlext_flushed_equals_counts_ref_batch_"].startswith("Got 1 result")
    sql("DROP FLOW models.counts")
    assert said["sqlext_flushed_counts_"] == "pass"
    assert project("test", "--select", "test_name:flushed", fails=True)["sqlext_flushed_counts_"].startswith("Got 1 result")


# Materialized views.


@pytest.fixture
def views(tmp_path: Path, sql: Workshop) -> Project:
    made = new_project(tmp_path / "views")
    made.write("models/totals.sql", TOTALS)
    assert made("run") == {"totals": "OK"}
    return made


def view(sql: Workshop) -> Any:
    (row,) = sql("SHOW MATERIALIZED VIEWS")
    assert row.full_name == "spark_catalog.models.totals"
    return row


def totals(sql: Workshop) -> list[tuple[Any, ...]]:
    return sql.batch("SELECT k, total FROM models.totals")


def test_a_run_refreshes_a_view_and_alters_what_differs(sql: Workshop, views: Project) -> None:
    before = view(sql)
    assert (before.policy, before.schedule) == ("AUTO", "EVERY 2 HOURS")
    assert totals(sql) == [("a", 1), ("b", 2), (None, 3)]
    sql("INSERT INTO events.ev VALUES ('a', 7)")
    sql("DELETE FROM events.ev WHERE k = 'b'")
    views.edit("models/totals.sql", "from events", "-- of all events\n  from   events")
    views.edit("models/totals.sql", "'2 hours'", "'120 min'")
    assert re.fullmatch(r"\D+2 rows changed in sources, version \d+|full .*", views("run")["totals"])
    assert totals(sql) == [("a", 8), (None, 3)]

    views.edit(
        "models/totals.sql",
        r"schedule=.*'}",
        "trigger='on_update', at_most_every='1 day', refresh_policy='incremental strict', tblproperties={'team': 'sales'}",
    )
    views.write("models/models.yml", DESCRIBED)
    (said,) = views("run", fails=True).values()
    assert "models.totals differs from its model (schedule, refresh policy, properties, comments), and `on_configuration" in said
    views.edit("models/totals.sql", "'fail'", "'continue'")
    assert views("run")["totals"].startswith("no change, version")
    assert (view(sql).policy, view(sql).schedule) == ("AUTO", "EVERY 2 HOURS")
    views.edit("models/totals.sql", "'continue'", "'apply'")
    assert views("run")["totals"].startswith("altered, no change, version")
    after = view(sql)
    assert (after.id, after.policy) == (before.id, "INCREMENTAL STRICT")
    assert after.schedule == "TRIGGER ON UPDATE AT MOST EVERY 1 DAY"
    assert {row.key: row.value for row in sql("SHOW TBLPROPERTIES models.totals")}["team"] == "sales"
    described = {row.col_name: row for row in sql("DESCRIBE TABLE EXTENDED models.totals")}
    assert described["Comment"].data_type == 'Totals of each, and "it\'s" all.'
    assert described["k"].comment == "The key."
    assert views("run")["totals"].startswith("no change, version")
    views.edit("models/totals.sql", "trigger='on_update', at_most_every='1 day', ", "")
    assert views("run")["totals"].startswith("altered, no change, version")
    assert view(sql).schedule is None


def test_a_target_lag_stays_with_its_model(sql: Workshop, views: Project) -> None:
    views.edit(
        "models/totals.sql", r"schedule=.*'fail'", "on_configuration_change='apply', tblproperties={'target-lag': '1 day'}"
    )
    assert views("run")["totals"].startswith("altered, ")
    assert view(sql).schedule == "TARGET LAG 1 DAY"
    views.edit("models/totals.sql", "'apply'", "'fail'")
    assert views("run")["totals"].startswith("no change, version")
    assert view(sql).schedule == "TARGET LAG 1 DAY"
    views.edit("models/totals.sql", "'fail', tblproperties={'target-lag': '1 day'}", "'apply'")
    assert views("run")["totals"].startswith("altered, ")
    assert view(sql).schedule is None
    views.edit("models/totals.sql", "'apply'", "'apply', tblproperties={'target-lag': '1 day'}")
    assert views("run")["totals"].startswith("altered, ")
    assert view(sql).schedule == "TARGET LAG 1 DAY"


def test_a_changed_query_and_a_full_refresh_recreate_the_view(sql: Workshop, views: Project) -> None:
    before = view(sql)
    views.edit("models/totals.sql", "sum", "max")
    (said,) = views("run", fails=True).values()
    assert "models.totals differs from its model (query), and `on_configuration_change` is `fail`" in said
    assert view(sql).id == before.id
    views.edit("models/totals.sql", "'fail'", "'apply'")
    sql("INSERT INTO events.ev VALUES ('a', 7), ('a', 8)")
    assert views("run") == {"totals": "OK"}
    assert totals(sql) == [("a", 8), ("b", 2), (None, 3)]
    after = view(sql)
    assert after.id != before.id
    assert views("run", "--full-refresh") == {"totals": "OK"}
    assert view(sql).id != after.id
    views.edit("models/totals.sql", "'apply'", "'apply', partition_by='k'")
    assert views("run") == {"totals": "OK"}
    assert sql("DESCRIBE DETAIL models.totals")[0].partitionColumns == ["k"]
    assert totals(sql) == [("a", 8), ("b", 2), (None, 3)]


def test_a_view_and_what_else_has_its_name(sql: Workshop, views: Project) -> None:
    views.edit("models/totals.sql", "materialized_view", "bounded_table")
    views.edit("models/totals.sql", "from events", "from stream events")
    views.edit("models/totals.sql", "group by k", "group by k global window end of stream")
    (said,) = views("run", fails=True).values()
    assert "models.totals is a materialized view, and a job would replace its rows" in said
    views.edit("models/totals.sql", "bounded_table", "streaming_table")
    views.edit("models/totals.sql", " global window end of stream", "")
    assert views("run", "--full-refresh") == {"totals": "OK"}
    assert sql("SHOW MATERIALIZED VIEWS") == []
    views.write("models/totals.sql", TOTALS)
    (said,) = views("run", "--full-refresh", fails=True).values()
    assert "A flow keeps models.totals up to date" in said
    views("run-operation", "sqlext.drop_flow", "--args", "{name: totals}")
    (said,) = views("run", fails=True).values()
    assert "There is a table models.totals already, which is no materialized view" in said
    assert views("run", "--full-refresh") == {"totals": "OK"}
    assert totals(sql) == [("a", 1), ("b", 2), (None, 3)]
    views("run-operation", "sqlext.drop_materialized_view", "--args", "{name: models.totals}")
    assert sql("SHOW MATERIALIZED VIEWS") == []
    sql("CREATE VIEW models.totals AS SELECT 'mine' AS k")
    assert views("run") == {"totals": "OK"}
    assert totals(sql) == [("a", 1), ("b", 2), (None, 3)]


# The example.

WORST = """
SELECT coalesce(max(a.name), d.dest) AS airport, count(*) AS departures, avg(d.dep_delay) AS mean_delay
FROM new_york.departures d LEFT JOIN new_york.airports a ON d.dest = a.faa
GROUP BY d.dest HAVING count(*) >= 5 ORDER BY mean_delay DESC, d.dest LIMIT 3
"""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dbt") / "warehouse"


@pytest.fixture
def port(warehouse: Path, tmp_path: Path) -> Iterator[int]:
    """A server's; it is ended as a service manager ends it."""
    output = tmp_path / "server.txt"
    command = [sys.executable, "-m", "sqlext.cli", "thriftserver", "--port", "0", "--warehouse", str(warehouse)]
    with output.open("wb") as file:
        server = subprocess.Popen(
            [*command, "--conf", f"spark.driver.extraJavaOptions={ONE_TIER}"],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
        )
    try:
        found = eventually(
            lambda: re.search(r"Thrift server on 127\.0\.0\.1:(\d+)", output.read_text()) or server.poll() is not None, DEADLINE
        )
        assert isinstance(found, re.Match), output.read_text()
        yield int(found[1])
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE) == 0, output.read_text()
    finally:
        server.kill()
        server.wait()


def rows(port: int, statement: str) -> list[Any]:
    with hive.connect("127.0.0.1", port, username="test") as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def flows(port: int) -> dict[str, tuple[str, str]]:
    """Id and epoch of each flow, by name; views, which SHOW FLOWS shows too, have no epoch."""
    named = {row[0]: dict(rows(port, f"DESCRIBE FLOW {row[FULL_NAME]}")) for row in rows(port, "SHOW FLOWS")}
    return {name: (described["id"], described["epoch"]) for name, described in named.items() if "epoch" in described}


def test_the_example_over_thrift(tmp_path: Path, warehouse: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers, with tests between them; then more departures, and airports that are corrected."""
    monkeypatch.setenv("SQLEXT_PORT", str(port))
    dbt = example(warehouse.parent / "example", "thrift")
    sqlext_dbt("init-package", str(dbt.folder))
    dbt("deps")
    dbt("seed")
    dbt("run-operation", "arrive", "--args", "{day: 1}")
    made = dbt("build", "--exclude", "resource_type:seed")
    assert set(made.values()) == {"OK", "pass"}
    before = flows(port)
    assert set(before) == {"bronze_departures", "delays", "late_departures"}
    assert rows(port, "SELECT sum(departures) FROM new_york.destinations") == [(165,)]

    dbt("run-operation", "arrive", "--args", "{day: 2}")
    again = dbt("build", "--select", "bronze_departures+")
    assert {again[name] for name in before} == {"unchanged"}
    assert flows(port) == before
    assert {result for name, result in again.items() if "_departures_" in name or name.startswith("sqlext_")} == {"pass"}
    assert rows(port, "SELECT sum(departures) FROM new_york.delays") == [(391,)]
    assert rows(port, "SELECT count(*) FROM new_york.late_departures") == [(13,)]
    assert rows(port, f"SELECT * FROM new_york.worst_airports EXCEPT ({WORST})") == []
    assert lineage(port) == edges(dbt)

    dbt("run-operation", "name_airport", "--args", "{faa: MCO, name: Orlando}")
    subtree = dbt("build", "--select", "silver_departures+")
    refreshed = {name for name, result in subtree.items() if result != "pass"}
    assert refreshed == {"silver_departures", "airport_delays", "airline_delays", "worst_airports"}
    assert rows(port, "SELECT departures FROM new_york.worst_airports WHERE airport = 'Orlando'") == [(19,)]

    assert set(dbt("build", "--full-refresh", "--select", "delays").values()) == {"OK", "pass"}
    assert flows(port)["delays"][0] != before["delays"][0]

    dbt("docs", "generate")
    catalog = json.loads((dbt.folder / "target" / "catalog.json").read_text())["nodes"]
    columns = list(catalog["model.new_york.delays"]["columns"])
    assert columns == ["carrier", "origin", "departures", "destinations", "cancelled", "longest"]
    assert dbt("source", "freshness") == {"departures": "pass"}


def lineage(port: int) -> set[tuple[str, str]]:
    """Which table feeds which, by their short names."""
    return {(row[0].split(".")[-1], row[2].split(".")[-1]) for row in rows(port, "SHOW LINEAGE")}


def edges(dbt: Project) -> set[tuple[str, str]]:
    """The same by the `ref` and `source` of the models that sqlext keeps up to date."""
    nodes = json.loads((dbt.folder / "target" / "manifest.json").read_text())["nodes"].values()
    kept = [node for node in nodes if node["config"].get("materialized") in ("streaming_table", "materialized_view")]
    return {(below.split(".")[-1], node["name"]) for node in kept for below in node["depends_on"]["nodes"]}


def sqlext_dbt(*arguments: str, cwd: Path | None = None) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "sqlext.cli", "dbt", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=DEADLINE,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def test_the_same_flows_go_on_in_dbts_own_process(warehouse: Path) -> None:
    quick = f"spark.driver.extraJavaOptions={ONE_TIER}"
    said = sqlext_dbt(
        "--warehouse",
        str(warehouse),
        "--conf",
        quick,
        "test",
        "--select",
        "delays late_departures",
        cwd=warehouse.parent / "example",
    )
    found = re.search(r"resumed flows: (.*)", said)
    assert found is not None, said
    assert sorted(found[1].split(", ")) == ["bronze_departures", "delays", "late_departures"]
    assert "PASS=4 WARN=0 ERROR=0" in said  # three tests, and the hook that comes before
    assert len(re.findall(r"^(?:delays|late_departures) STOPPED, rows in 0,", said, re.MULTILINE)) == 2
