"""The figures of a real process, scraped by a real Prometheus; its own tool checks names, rules and what they do."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

import pytest

from sqlext.page.address import Address
from sqlext.page.render import asset
from sqlext.page.server import page_server
from tests.integration.workshop import DEADLINE, Workshop
from tests.prometheus import Prometheus, programs
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("lean")

RULES_TEST = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'sqlext_flow_status{flow="c.s.f", target="c.s.t", status="FAILED"}', values: "1x10"}
      - {series: 'sqlext_flow_lag_seconds{flow="c.s.f"}', values: "1000x30"}
      - {series: 'sqlext_flow_lag_seconds{flow="c.s.g"}', values: "10x30"}
    alert_rule_test:
      - eval_time: 5m
        alertname: SqlextFlowFailed
        exp_alerts:
          - exp_labels: {severity: critical, flow: c.s.f, target: c.s.t, status: FAILED}
            exp_annotations: {summary: "The flow c.s.f is FAILED, so c.s.t is no longer kept up to date."}
      - eval_time: 20m
        alertname: SqlextFlowBehind
        exp_alerts:
          - exp_labels: {severity: warning, flow: c.s.f}
            exp_annotations: {summary: "The flow c.s.f is 16m 40s behind its sources."}
"""


def promtool(*arguments: str, given: bytes = b"") -> str:
    """What Prometheus' tool prints; it must find nothing wrong."""
    done = subprocess.run([programs().promtool, *arguments], input=given, capture_output=True, timeout=60)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_the_rules_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(asset("alerts.yml"))
    (tmp_path / "test.yml").write_text(RULES_TEST)
    assert "8 rules found" in promtool("check", "rules", str(tmp_path / "alerts.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "test.yml"))


def test_prometheus_scrapes_a_process(sql: Workshop, tmp_path: Path) -> None:
    """Each query of the dashboard returns data while rows come, and an alert is raised when a flow has failed."""
    sql.source()
    sql("CREATE TABLE other (k STRING, v INT) USING delta")
    buffered = "TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')"
    sql(f"CREATE STREAMING TABLE t (CONSTRAINT positive EXPECT (k IS NOT NULL)) {buffered} AS SELECT k, v FROM STREAM ev")
    sql("CREATE STREAMING TABLE u AS SELECT k, count(*) AS n FROM STREAM other GROUP BY k")
    sql("CREATE MATERIALIZED VIEW v AS SELECT k, sum(v) AS total FROM ev GROUP BY k")
    sql("SET execution.batch.job-recovery.enabled = true")
    sql("CREATE TABLE j USING delta AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k GLOBAL WINDOW END OF STREAM")
    sql("WAIT FLOW t")
    expressions = [panel["targets"][0]["expr"] for panel in json.loads(asset("grafana.json"))["panels"]]
    empty = set(expressions)
    with page_server(Address("127.0.0.1", 0)) as page, page.showing(sql.spark):
        with urllib.request.urlopen(f"{page.url}metrics", timeout=DEADLINE) as answer:
            promtool("check", "metrics", given=answer.read())
        target = page.url.removeprefix("http://").rstrip("/")
        prometheus = Prometheus(tmp_path, target, asset("alerts.yml"))
        try:

            def all_have_data() -> bool:
                if any("buffered" in each for each in empty):
                    sql("INSERT INTO ev VALUES ('c', 4), (NULL, 5)")
                empty.difference_update([each for each in empty if prometheus.query(each)])
                return not empty

            eventually(all_have_data, DEADLINE, lambda: f"without data: {', '.join(sorted(empty))}")
            assert prometheus.query('sqlext_flow_constraint_violations_total{constraint="positive"}')[0]["value"][1] != "0"
            sql("DELETE FROM other")  # there is nothing to delete; a commit that adds nothing is no change
            sql("INSERT INTO other VALUES ('a', 1)")
            sql("WAIT FLOW u")
            sql("UPDATE other SET v = 2")
            eventually(lambda: "SqlextFlowFailed" in prometheus.alerts(), DEADLINE, lambda: str(prometheus.alerts()))
        finally:
            prometheus.stop()
