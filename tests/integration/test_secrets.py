"""Secrets: only the record that a flow or job runs by holds them, its owner alone reads it, and nothing shows them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sqlext.page.collect import Collector
from tests.integration.workshop import Workshop, local

SECRET = "k3y"
OPTIONS = f"'kafka.sasl.jaas.config' = 'required username=\"ann\" password=\"{SECRET}\";', 'at' = 'x://ann:{SECRET}@h'"
SOURCE = f"STREAM ev WITH ({OPTIONS})"


def modes(folder: Path) -> set[str]:
    return {oct(file.stat().st_mode & 0o777) for file in folder.rglob("*") if file.is_file()}


def test_a_flow(sql: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    """A secret among a source's options is needed to run the flow, also in the next process."""
    caplog.set_level(logging.DEBUG, logger="sqlext")
    sql.source()
    sql.spark.conf.set("fs.azure.account.key.shop", SECRET)
    statement = f"CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM {SOURCE} GROUP BY k"
    explained = sql(f"EXPLAIN {statement}")[0].plan
    assert "kafka.sasl.jaas.config" in explained
    sql(statement)
    sql("WAIT FLOW t")
    sql.crash()
    sql.resume()
    sql("INSERT INTO ev VALUES ('a', 1)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch("SELECT k, count(*) AS n FROM ev GROUP BY k")

    (flow,) = sql.host.flows.views()
    assert SECRET in flow.record.spec.streams[0].sql
    assert flow.record.spec.settings.get("fs.azure.account.key.shop") is None
    shown = Collector(sql.spark, sql.host).flow(flow.record.spec.id)
    seen = [explained, sql("SHOW FLOWS"), sql("DESCRIBE FLOW t"), sql.commits("t"), shown, caplog.text]
    assert [text for text in map(str, seen) if SECRET in text] == []
    assert "kafka.sasl.jaas.config" in str(shown.text)


def test_a_job(sql: Workshop) -> None:
    sql.source()
    sql("SET execution.batch.job-recovery.enabled = true")
    sql("CREATE TABLE t (k STRING, n BIGINT) USING delta")
    statement = f"INSERT INTO t SELECT k, count(*) AS n FROM {SOURCE} GROUP BY k GLOBAL WINDOW END OF STREAM"
    explained = sql(f"EXPLAIN {statement}")[0].plan
    sql(statement)
    assert oct((local(sql.host.home) / "jobs").stat().st_mode & 0o777) == "0o700"
    (job,) = sql("SHOW JOBS")
    shown = Collector(sql.spark, sql.host).job(job.id)
    assert "kafka.sasl.jaas.config" in shown.text
    assert [text for text in map(str, (explained, job, shown)) if SECRET in text] == []


def test_only_its_owner_reads_the_home(sql: Workshop) -> None:
    sql.source()
    home = local(sql.host.home)
    warehouse = home.parent.stat().st_mode
    sql("CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k")
    assert oct(home.stat().st_mode & 0o777) == "0o700"
    for name in ("registry", "hosts"):
        assert modes(home / name) == {"0o600"}
    assert home.parent.stat().st_mode == warehouse, "tables are nobody's secret"


def test_a_home_that_was_open_is_closed(sql: Workshop) -> None:
    home = local(sql.host.home)
    home.mkdir(mode=0o755)
    sql.source()
    sql("CREATE STREAMING TABLE t AS SELECT k FROM STREAM ev")
    assert oct(home.stat().st_mode & 0o777) == "0o700"


def test_a_home_that_was_open_is_closed_before_anything_is_made(sql: Workshop) -> None:
    home = local(sql.host.home)
    for folder in (home, home / "registry", home / "live"):
        folder.mkdir(mode=0o755)
    sql.crash()
    sql.resume()
    assert sql("SHOW FLOWS") == []
    assert {oct(folder.stat().st_mode & 0o777) for folder in (home, home / "registry", home / "live")} == {"0o700"}


def test_a_failure(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS SELECT raise_error('x://ann:{SECRET}@h does not answer') AS e FROM STREAM ev")
    with pytest.raises(Exception, match="does not answer") as caught:
        sql("WAIT FLOW t")
    assert SECRET not in str(caught.value)
    assert SECRET not in str(sql.shown("t"))
