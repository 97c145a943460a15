"""What a flow, a view and a job log has their names, on whichever thread it is logged."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sqlext.logs import JsonFormatter
from sqlext.moments import Moment, listened
from tests.integration.workshop import BUFFERED, COUNTS, Workshop

pytestmark = pytest.mark.usefixtures("lean")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The log of a process that has its own logging, with sqlext's formatter."""
    path, logger = tmp_path / "log.jsonl", logging.getLogger("sqlext")
    handler, level = logging.FileHandler(path, encoding="utf-8"), logger.level
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield path
    logger.removeHandler(handler)
    logger.setLevel(level)
    handler.close()


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_each_line_of_a_flow_has_its_name_and_epoch(sql: Workshop, log: Path) -> None:
    sql.source()
    heard: list[tuple[str, bool]] = []

    def hear(moment: Moment, name: str) -> None:
        heard.append((moment.value, threading.current_thread() is threading.main_thread()))
        logging.getLogger("sqlext.tests").info("moment %s of %s", moment.value, name)

    with listened(hear):
        sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
        sql("WAIT FLOW t")
    sql("STOP FLOW t")
    sql("START FLOW t")
    sql("STOP FLOW t")
    of_flow = [line for line in lines(log) if line.get("flow") == "spark_catalog.default.t"]
    said = {line["message"] for line in of_flow if line["epoch"] == 1}
    assert {message for message in said if message.startswith("flow t: flushed 3 rows")}
    assert {f"moment {Moment.BATCH_BUFFERED.value} of t", f"moment {Moment.FLUSH_COMMITTED.value} of t"} <= said
    assert (Moment.BATCH_BUFFERED.value, False) in heard  # on a thread of Spark's
    for epoch in (1, 2):
        said = {line["message"] for line in of_flow if line["epoch"] == epoch}
        assert {f"flow t: started, epoch {epoch}, target spark_catalog.default.t", "flow t: stopped"} <= said
    assert [line for line in lines(log) if "flow t" in line["message"] and "flow" not in line] == []


def test_a_failure_is_logged_for_its_flow(sql: Workshop, log: Path) -> None:
    sql.source()
    sql("CREATE STREAMING TABLE t AS SELECT k, assert_true(v > 0, 'colder than cold') AS c, v FROM STREAM ev")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('d', -1)")
    with pytest.raises(Exception, match="colder than cold"):
        sql("WAIT FLOW t")
    failed = [line for line in lines(log) if line["level"] == "ERROR"]
    assert failed
    assert all((line["flow"], line["epoch"]) == ("spark_catalog.default.t", 1) for line in failed)


def test_a_refresh_and_a_job_are_named(sql: Workshop, log: Path) -> None:
    sql.source()
    sql("CREATE MATERIALIZED VIEW w AS SELECT k, sum(v) AS total FROM ev GROUP BY k")
    logging.getLogger("sqlext.tests").info("between")
    sql("SET execution.batch.job-recovery.enabled = true")
    sql("CREATE TABLE j USING delta AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k GLOBAL WINDOW END OF STREAM")
    [between] = [line for line in lines(log) if line["message"] == "between"]
    assert not {"flow", "view", "job"} & between.keys()
    [job] = [row.id for row in sql("SHOW JOBS")]
    assert job in {line.get("job") for line in lines(log)}
    assert "spark_catalog.default.w" in {line.get("view") for line in lines(log)}
