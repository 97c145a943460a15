"""Events of a real flow and view, sent by OpenLineage's own client to a collector over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sqlext.openlineage.sending import sender_of
from tests.integration.workshop import BUFFERED, COUNTS, DEADLINE, Workshop
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("lean")


class Collector:
    """A collector on a port of this machine; while `gate` is not set, it answers nobody."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked.set()
                collector.gate.wait(DEADLINE)
                collector.events.append(json.loads(body))
                self.send_response(201)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, name="test-collector", daemon=True).start()

    def wait_for(self, job: str, state: str, since: int = 0) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            events = self.events[since:]
            return next((each for each in events if (each["job"]["name"], each["eventType"]) == (job, state)), None)

        def said() -> str:
            return str([(each["job"]["name"], each["eventType"]) for each in self.events])

        event = eventually(found, DEADLINE, said)
        assert event is not None
        return event


@pytest.fixture
def collector(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv("OPENLINEAGE_URL", made.url)
    sender = sender_of(sql.spark)
    assert sender is not None
    yield made
    made.gate.set()
    sender.close()
    made.server.shutdown()
    made.server.server_close()


def inputs_and_columns(event: dict[str, Any]) -> tuple[set[str], dict[str, list[tuple[str, list[str]]]]]:
    """The names of the inputs; and by column of the output, the columns that it comes from, and how."""
    [output] = event["outputs"]
    fields = output["facets"]["columnLineage"]["fields"]
    columns = {
        name: sorted((each["field"], [how["subtype"] for how in each["transformations"]]) for each in field["inputFields"])
        for name, field in fields.items()
    }
    return {each["name"] for each in event["inputs"]}, columns


def schema_of(dataset: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["name"], each["type"]) for each in dataset["facets"]["schema"]["fields"]]


def test_a_flow_from_start_to_stop_and_failure(sql: Workshop, collector: Collector) -> None:
    sql.source()
    name = "spark_catalog.default.t"
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    start, complete = collector.wait_for(name, "START"), collector.wait_for(name, "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    place = sql("DESCRIBE DETAIL ev")[0].location.removeprefix("file:")
    for event in (start, complete):
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        reads, columns = inputs_and_columns(event)
        assert reads == {place}
        assert columns == {"k": [("k", ["IDENTITY"])], "n": [], "total": [("v", ["AGGREGATION"])]}
        assert schema_of(event["inputs"][0]) == [("k", "STRING"), ("v", "INT")]
        assert schema_of(event["outputs"][0]) == [("k", "STRING"), ("n", "BIGINT"), ("total", "BIGINT")]
        assert event["outputs"][0]["facets"]["symlinks"]["identifiers"][0]["name"] == "default.t"
    assert complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3
    seen = len(collector.events)
    sql("START FLOW t")
    sql("UPDATE ev SET v = 5 WHERE k = 'a'")
    failed = collector.wait_for(name, "FAIL", seen)
    assert collector.wait_for(name, "START", seen)["run"]["runId"] == failed["run"]["runId"] != start["run"]["runId"]
    assert "UPDATE" in failed["run"]["facets"]["errorMessage"]["message"].upper()
    assert inputs_and_columns(failed)[0] == {place}


def test_each_refresh_of_a_view_is_a_run(sql: Workshop, collector: Collector) -> None:
    sql.source()
    sql("CREATE TABLE names (k STRING, name STRING) USING delta")
    sql("INSERT INTO names VALUES ('a', 'attic')")
    values = "upper(n.name) AS name, sum(CASE WHEN e.v > 1 THEN e.v END) AS total"
    sql(f"CREATE MATERIALIZED VIEW w AS SELECT {values} FROM ev e JOIN names n ON e.k = n.k GROUP BY 1")
    name = "spark_catalog.default.w"
    start, complete = collector.wait_for(name, "START"), collector.wait_for(name, "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert complete["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    reads, columns = inputs_and_columns(complete)
    assert reads == {sql(f"DESCRIBE DETAIL {each}")[0].location.removeprefix("file:") for each in ("ev", "names")}
    assert columns == {"name": [("name", ["TRANSFORMATION"])], "total": [("v", ["AGGREGATION", "CONDITIONAL"])]}
    assert {each["facets"]["version"]["datasetVersion"] for each in complete["inputs"]} == {"1"}
    assert complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1
    seen = len(collector.events)
    sql("DROP TABLE names")
    with pytest.raises(Exception, match="names"):
        sql("REFRESH MATERIALIZED VIEW w")
    failed = collector.wait_for(name, "FAIL", seen)
    assert "names" in failed["run"]["facets"]["errorMessage"]["message"]


def test_a_collector_that_hangs_delays_no_flush(sql: Workshop, collector: Collector) -> None:
    sql.source()
    collector.gate.clear()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")  # which flushes
    assert collector.asked.wait(DEADLINE)
    assert sql.equals_batch()
    assert collector.events == []  # it has not answered yet
