"""What Prometheus gets: figures made by hand, read back by its own parser; names, rules and dashboard go together."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from sqlext.page.app import PageApp
from sqlext.page.metrics import exposition
from sqlext.page.render import asset
from sqlext.page.snapshot import FlowSummary, LiveFigures, Overview, RefreshView, SourceView, ViewSummary
from sqlext.plan.durations import Durations
from sqlext.spark.state_size import StateSize
from tests.pages import HOSTILE, NINE, MadePages, no_drawing

FLOW = FlowSummary(
    "f1",
    "views",
    "spark_catalog.s.views",
    "RUNNING",
    LiveFigures(
        phase="backlog",
        lag=timedelta(seconds=75),
        rows_in=1_000,
        micro_batches=30,
        buffered_rows=7,
        oldest_arrival=NINE - timedelta(seconds=12),
        rows_flushed=900,
        last_flush=NINE,
        flush_durations=Durations().with_one(0.2).with_one(7.0),
        violations={"positive": 3},
        state={"delta": StateSize(40, 2_048), "rocksdb": StateSize(None, 9)},
    ),
    full_name="spark_catalog.s.views",
)
RETRYING = FlowSummary("f2", HOSTILE, "spark_catalog.s.other", "RETRYING", full_name=HOSTILE, failed_starts=4)
VIEW = ViewSummary(
    "v1",
    "totals",
    "spark_catalog.s.totals",
    "FAILED",
    last=RefreshView(4, NINE, "full", rows_in=None, seconds=2.5),
    sources=(SourceView("x", 3, 5, NINE - timedelta(minutes=2)),),
)
BEHIND_NOTHING = ViewSummary("v2", "u", "spark_catalog.s.u", "IDLE", sources=(SourceView("x", 3, 3),))


def samples(overview: Overview, *labels: str) -> dict[tuple[str, ...], float]:
    """The values of all samples, by their names and the values of some labels that they have."""
    text, _ = exposition(overview, MadePages().process())
    families = list(text_string_to_metric_families(text.decode()))
    found = [each for family in families for each in family.samples]
    return {(each.name, *(each.labels[key] for key in labels if key in each.labels)): each.value for each in found}


def test_a_flow() -> None:
    found = samples(Overview(NINE, "p", (FLOW,)), "flow", "le", "constraint")
    name = "spark_catalog.s.views"
    assert found["sqlext_flow_input_rows_total", name] == 1_000
    assert found["sqlext_flow_lag_seconds", name] == 75
    assert found["sqlext_flow_oldest_buffered_age_seconds", name] == 12
    assert found["sqlext_flow_backlog", name] == 1
    assert found["sqlext_flow_flush_duration_seconds_bucket", name, "0.1"] == 0
    assert found["sqlext_flow_flush_duration_seconds_bucket", name, "5.0"] == 1
    assert found["sqlext_flow_flush_duration_seconds_bucket", name, "+Inf"] == 2
    assert found["sqlext_flow_flush_duration_seconds_count", name] == 2
    assert found["sqlext_flow_flush_duration_seconds_sum", name] == pytest.approx(7.2)
    assert found["sqlext_flow_constraint_violations_total", name, "positive"] == 3


def test_the_state_of_a_flow_as_far_as_it_is_known() -> None:
    found = samples(Overview(NINE, "p", (FLOW,)), "flow", "backend")
    of_state = {key: value for key, value in found.items() if key[0].startswith("sqlext_flow_state")}
    name = "spark_catalog.s.views"
    assert of_state == {
        ("sqlext_flow_state_rows", name, "delta"): 40,
        ("sqlext_flow_state_bytes", name, "delta"): 2_048,
        ("sqlext_flow_state_bytes", name, "rocksdb"): 9,
    }


def test_a_flow_that_does_not_run_here_has_a_status_only() -> None:
    found = samples(Overview(NINE, "p", (RETRYING,)), "flow", "target", "status")
    assert found["sqlext_flow_status", HOSTILE, "spark_catalog.s.other", "RETRYING"] == 1
    assert found["sqlext_flow_failed_starts", HOSTILE] == 4
    assert not [key for key in found if key[0].startswith("sqlext_flow_input")]


def test_views() -> None:
    found = samples(Overview(NINE, "p", (), (VIEW, BEHIND_NOTHING)), "view", "status")
    name = "spark_catalog.s.totals"
    assert found["sqlext_view_status", name, "FAILED"] == 1
    assert found["sqlext_view_behind_versions", name] == 2
    assert found["sqlext_view_lag_seconds", name] == 120
    assert found["sqlext_view_lag_seconds", "spark_catalog.s.u"] == 0
    assert found["sqlext_view_last_refresh_duration_seconds", name] == 2.5
    assert found["sqlext_view_last_refresh_full", name] == 1
    assert ("sqlext_view_last_refresh_input_rows", name) not in found  # not counted
    assert ("sqlext_view_last_refresh_duration_seconds", "spark_catalog.s.u") not in found


def test_the_process() -> None:
    found = samples(Overview(NINE, "p"), "version", "runtime")
    assert found["sqlext_info", "0.1.0"] == 1
    assert found["sqlext_jvm_heap_used_bytes",] == 300_000_000
    assert found["sqlext_threads", "java"] == 80
    assert found["sqlext_start_time_seconds",] == NINE.timestamp()


def families(overview: Overview) -> set[str]:
    """The names of all samples that Prometheus can be asked for."""
    text, _ = exposition(overview, MadePages().process())
    return {each.name for family in text_string_to_metric_families(text.decode()) for each in family.samples}


def test_rules_and_dashboard_ask_for_what_there_is() -> None:
    """Every name that they use, of the figures of a process that has everything."""
    known = families(Overview(NINE, "p", (FLOW, RETRYING), (VIEW,), MadePages().made.jobs))
    asked = asset("alerts.yml") + " ".join(
        target["expr"] for panel in json.loads(asset("grafana.json"))["panels"] for target in panel["targets"]
    )
    names = set(re.findall(r"sqlext_\w+", asked))
    assert len(names) > 12
    assert names <= known


def test_what_monitors_ask_for() -> None:
    pages = MadePages()
    app = PageApp(pages, no_drawing)
    client = TestClient(app.asgi, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)
    figures = client.get("/metrics")
    assert figures.headers["content-type"].startswith("text/plain; version=")
    assert "sqlext_flow_status" in figures.text
    other = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert other.headers["content-type"].startswith("application/openmetrics-text")
    assert other.text.endswith("# EOF\n")
    assert (client.get("/health").status_code, client.get("/ready").status_code) == (200, 200)
    assert client.get("/alerts.yml").text.startswith("# Alert rules")
    pages.made = Overview(NINE, "p", (FlowSummary("f", "f", "s.f", "STARTING", full_name="c.s.f"),))
    starting = client.get("/ready")
    assert (starting.status_code, starting.text) == (503, "starting: c.s.f\n")
    pages.error = RuntimeError("Spark is gone")
    assert [client.get(path).status_code for path in ("/metrics", "/health", "/ready")] == [503, 503, 503]
    app.close()
