"""Jobs that survive their driver, from SQL: run, killed, gone on with, refused, canceled, shown."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sqlext
from sqlext.execution.coordination.fence import Fence
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.jobs import division
from sqlext.execution.jobs.manager import JobManager
from sqlext.execution.jobs.outputs import PartOutput, VertexTable
from sqlext.execution.jobs.registry import JobEventKind, JobRegistry, RegisteredEvent
from sqlext.spark.settings import session_settings
from tests.integration.workshop import Workshop, local
from tests.support import eventually

RECOVERY = "SET execution.batch.job-recovery.enabled = true"
QUERY = "SELECT k, count(*) AS n, sum(v) AS s FROM STREAM facts GROUP BY k GLOBAL WINDOW END OF STREAM"
OF_OTHERS = "a table or files that it did not write are there now"
BATCH = "SELECT k, count(*) AS n, sum(v) AS s FROM {} GROUP BY k"


@pytest.fixture
def jobs(spark: SparkSession) -> Workshop:
    sql = Workshop(spark)
    spark.range(0, 600, 1, 3).selectExpr("id % 11 AS k", "id AS v").write.format("delta").saveAsTable("facts")
    sql(RECOVERY)
    return sql


@pytest.fixture(autouse=True)
def every_result_is_kept() -> Iterator[None]:
    """As those of large jobs are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "KEPT_BYTES", 0)
        yield


class Killed(Exception):  # noqa: N818  # no error of the product: the driver is gone
    pass


@pytest.fixture
def die_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the driver die when so many parts have committed."""
    commit = VertexTable.commit

    def arrange(parts: int) -> None:
        left = [parts]

        def counted(table: VertexTable, output: PartOutput) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            commit(table, output)

        monkeypatch.setattr(VertexTable, "commit", counted)

    return arrange


def killed(sql: Workshop, statement: str, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, parts: int) -> str:
    """Run a statement whose driver dies; what is left is what `kill -9` leaves.

    Returns:
        The job's id.
    """
    die_after(parts)
    with pytest.raises(PySparkException, match="Killed"):
        sql(statement)
    monkeypatch.undo()
    sql.crash()
    (row,) = [row for row in sql("SHOW JOBS") if row.status == "LOST"]
    return str(row.id)


def rows(sql: Workshop, table: str = "t") -> list[tuple[Any, ...]]:
    return sql.batch(f"SELECT * FROM {table}")


def test_create_table_and_insert(jobs: Workshop) -> None:
    (answer,) = jobs(f"CREATE TABLE t USING delta AS {QUERY}")
    assert "finished into spark_catalog.default.t" in answer[0]
    assert rows(jobs) == jobs.batch(BATCH.format("facts"))
    jobs(f"INSERT INTO t (n, k, s) SELECT n, k, s FROM ({QUERY})")
    assert len(rows(jobs)) == 22
    insert, create = jobs("SHOW JOBS")
    assert (create.status, insert.status) == ("FINISHED", "FINISHED")
    assert create.parts > 3
    assert create.skipped == 0
    assert create.event_bytes > 0
    assert create.statement.startswith("CREATE TABLE t")
    assert create.submitted < create.ended < insert.ended
    assert not jobs_folder(jobs, create.id).exists(), "what a finished job needed is gone"


def test_a_streaming_table_in_batch_mode_is_a_job(jobs: Workshop) -> None:
    jobs("SET execution.runtime-mode = BATCH")
    jobs("CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM facts GROUP BY k")
    assert rows(jobs) == jobs.batch("SELECT k, count(*) AS n FROM facts GROUP BY k")
    assert [row.status for row in jobs("SHOW JOBS")] == ["FINISHED"]


def test_the_properties_of_the_table_that_an_insert_writes_to_count(jobs: Workshop) -> None:
    """Those for jobs; others are for the table's flow."""
    jobs("SET execution.batch.job-recovery.enabled = false")
    given = "'execution.batch.job-recovery.enabled' = 'true', 'table.exec.state.ttl' = '1 hour'"
    jobs(f"CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta TBLPROPERTIES ({given})")
    jobs("CREATE TABLE files (k BIGINT, n BIGINT, s BIGINT) USING parquet")
    jobs("RESET `execution.batch.job-recovery.enabled`")
    jobs(f"INSERT INTO files {QUERY}")
    assert jobs("SHOW JOBS") == []
    jobs(f"INSERT INTO t {QUERY}")
    assert rows(jobs) == jobs.batch(BATCH.format("facts"))
    assert [row.target for row in jobs("SHOW JOBS")] == ["spark_catalog.default.t"]


def test_columns_that_folders_name(jobs: Workshop) -> None:
    """Of files in folders, each part reads some: what the folders say is read along."""
    jobs("CREATE TABLE folders (v BIGINT, day DATE, site STRING) USING parquet PARTITIONED BY (day, site)")
    jobs(
        "INSERT INTO folders SELECT v, date_add(DATE '2024-01-01', CAST(k % 3 AS INT)), "
        "element_at(array('a b', 'x=y/z', '50%', NULL), CAST(k % 4 AS INT) + 1) FROM facts"
    )
    query = "SELECT day, site, count(*) AS n, sum(v) AS s FROM {} GROUP BY day, site"
    jobs(f"CREATE TABLE t USING delta AS {query.format('STREAM folders')} GLOBAL WINDOW END OF STREAM")
    assert rows(jobs) == jobs.batch(query.format("folders"))
    assert jobs("SHOW JOBS")[0].parts > 3


@pytest.mark.parametrize("parts", [0, 2, 4])
def test_a_job_is_resumed_after_its_driver_died(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """New rows and even a new schema of the input change nothing: it is pinned."""
    expected = jobs.batch(BATCH.format("facts"))
    job = killed(jobs, f"CREATE TABLE t USING delta AS {QUERY}", die_after, monkeypatch, parts)
    jobs("INSERT INTO facts VALUES (1, 1000000)")
    jobs("ALTER TABLE facts ADD COLUMN w INT")
    before = [row for row in jobs(f"SHOW JOB EVENTS {job}") if row.type == "ExecutionVertexFinished"]
    assert len(before) == parts
    (answer,) = jobs(f"RESUME JOB {job}")
    assert rows(jobs) == expected
    (row,) = jobs("SHOW JOBS")
    assert (row.status, row.skipped) == ("FINISHED", parts)
    assert (f"{parts} finished by an earlier driver" in answer[0]) == (parts > 0)


def test_a_resumed_job_keeps_its_first_time(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = (
        "SELECT k, count(*) AS n, unix_millis(current_timestamp()) AS at, unix_millis(max(now())) AS most, current_date() AS d"
    )
    clause = "FROM STREAM facts WHERE localtimestamp() > DATE '2020-01-01' GROUP BY k GLOBAL WINDOW END OF STREAM"
    before = int(time.time() * 1000)
    job = killed(jobs, f"CREATE TABLE t USING delta AS {query} {clause}", die_after, monkeypatch, 2)
    died = int(time.time() * 1000)
    jobs(f"RESUME JOB {job}")
    ((at, most, groups),) = jobs("SELECT at, most, count(*) FROM t GROUP BY at, most")
    assert before <= at == most <= died
    assert groups == 11
    assert jobs("SHOW JOBS")[0].skipped == 2


def test_the_host_resumes_by_itself_when_it_starts(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlext.commands import job_statements
    from sqlext.commands.option_levels import resolve_levels, session_levels

    expected = jobs.batch(BATCH.format("facts"))
    job = killed(jobs, f"CREATE TABLE t USING delta AS {QUERY}", die_after, monkeypatch, 1)
    host = jobs.host.jobs
    assert host.resume_all(job_statements.fingerprints, resolve_levels(jobs.spark, session_levels(jobs.spark))) == (job,)
    assert host._thread is not None
    host._thread.join(90)
    assert rows(jobs) == expected


def filled_before_the_end(jobs: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill a table by a job whose driver dies before it can record that."""
    jobs("CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta")
    append = JobRegistry.append

    def dead(registry: JobRegistry, event: Any) -> Any:
        if isinstance(event, RegisteredEvent) and event.kind is JobEventKind.FINISHED:
            raise Killed
        return append(registry, event)

    monkeypatch.setattr(JobRegistry, "append", dead)
    with pytest.raises(PySparkException, match="Killed"):
        jobs(f"INSERT INTO t {QUERY}")
    monkeypatch.undo()
    jobs.crash()


def test_a_driver_that_died_after_the_table_was_filled_fills_it_once(jobs: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    filled_before_the_end(jobs, monkeypatch)
    expected = jobs.batch(BATCH.format("facts"))
    jobs("DROP TABLE facts")  # nothing has to be read again
    (row,) = jobs("SHOW JOBS")
    (answer,) = jobs(f"RESUME JOB {row.id}")
    assert "its table was already filled" in answer[0]
    assert rows(jobs) == expected


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "torn"])
def test_a_driver_that_died_before_its_new_table_was_in_the_catalog(
    jobs: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, committed: bool
) -> None:
    """What it has left where the table is to be is taken away, if it is its own."""
    half_made = left_behind(jobs, monkeypatch, tmp_path, f"CREATE TABLE t USING delta AS {QUERY}")
    if not committed:
        shutil.rmtree(half_made / "_delta_log")
    (row,) = jobs("SHOW JOBS")
    jobs(f"RESUME JOB {row.id}")
    assert rows(jobs) == jobs.batch(BATCH.format("facts"))


def test_a_table_of_somebody_else_in_the_place_of_a_new_one(
    jobs: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    half_made = left_behind(jobs, monkeypatch, tmp_path, f"CREATE TABLE t USING delta AS {QUERY}")
    shutil.rmtree(half_made)
    jobs.spark.range(3).write.format("delta").save(str(half_made))
    (row,) = jobs("SHOW JOBS")
    with pytest.raises(PySparkException, match=OF_OTHERS):
        jobs(f"RESUME JOB {row.id}")
    assert jobs.spark.read.format("delta").load(str(half_made)).count() == 3
    jobs.spark.range(3).write.format("delta").mode("append").save(str(half_made))
    for file in half_made.glob("_delta_log/*00000.*"):
        file.unlink()  # as when the log is cleaned up
    with pytest.raises(PySparkException, match=OF_OTHERS):
        jobs(f"RESUME JOB {row.id}")
    assert len(list(half_made.glob("_delta_log/*.json"))) == 1
    shutil.rmtree(half_made)
    jobs(f"RESUME JOB {row.id}")
    assert rows(jobs) == jobs.batch(BATCH.format("facts"))


@pytest.mark.parametrize("kind", ["csv", "parquet", "parquet without a mark", "commits"])
def test_files_of_somebody_else_in_the_place_of_a_new_table(
    jobs: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    half_made = left_behind(jobs, monkeypatch, tmp_path, f"CREATE TABLE t USING delta AS {QUERY}")
    if kind == "commits":
        (half_made / "_delta_log" / f"{1:020}.json").write_text('{"commitInfo": {}}')
    else:
        jobs.spark.range(0, 6, 1, 2).write.format(kind.split()[0]).mode("overwrite").save(str(half_made))
    if kind == "parquet without a mark":
        (half_made / "_SUCCESS").unlink()
    before = sorted(half_made.rglob("*"))
    (row,) = jobs("SHOW JOBS")
    with pytest.raises(PySparkException, match=OF_OTHERS):
        jobs(f"RESUME JOB {row.id}")
    assert sorted(half_made.rglob("*")) == before
    shutil.rmtree(half_made)
    jobs(f"RESUME JOB {row.id}")
    assert rows(jobs) == jobs.batch(BATCH.format("facts"))


def test_the_first_driver_deletes_nothing(jobs: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sqlext.execution.jobs import sink

    fill, place = sink.fill, tmp_path / "place"
    left = place / f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"

    def late(*given: Any) -> None:
        place.mkdir()
        left.touch()
        fill(*given)

    monkeypatch.setattr(sink, "fill", late)
    with pytest.raises(PySparkException, match=OF_OTHERS):
        jobs(f"CREATE TABLE t USING delta LOCATION '{place}' AS {QUERY}")
    assert left.exists()


def left_behind(jobs: Workshop, monkeypatch: pytest.MonkeyPatch, folder: Path, statement: str) -> Path:
    """Run a CREATE TABLE whose driver dies between Delta's commit and the entry in the catalog.

    Returns:
        The table's folder.
    """
    from sqlext.execution.jobs import sink

    fill, places = sink.fill, []

    def dead(*given: Any) -> None:
        fill(*given)
        place = local(jobs("DESCRIBE DETAIL t")[0].location)
        shutil.copytree(place, folder / "kept")
        jobs("DROP TABLE t")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "kept", place)
        places.append(place)
        raise Killed

    monkeypatch.setattr(sink, "fill", dead)
    with pytest.raises(PySparkException, match="Killed"):
        jobs(statement)
    monkeypatch.undo()
    jobs.crash()
    return Path(places[0])


def test_a_table_in_the_way_is_seen_before_the_work(jobs: Workshop, tmp_path: Path) -> None:
    jobs("CREATE TABLE t (a INT) USING delta")
    with pytest.raises(PySparkException, match=r"There is a table spark_catalog\.default\.t already"):
        jobs(f"CREATE TABLE t USING delta AS {QUERY}")
    (answer,) = jobs(f"CREATE TABLE IF NOT EXISTS t USING delta AS {QUERY}")
    assert "no job was submitted" in answer[0]
    (tmp_path / "file").touch()
    with pytest.raises(PySparkException, match=r"there are files at .*, where it would be created"):
        jobs(f"CREATE TABLE u USING delta LOCATION '{tmp_path}' AS {QUERY}")
    assert jobs("SHOW JOBS") == []
    jobs(f"CREATE OR REPLACE TABLE t USING delta AS {QUERY}")
    assert rows(jobs) == jobs.batch(BATCH.format("facts"))


def test_a_finished_job_is_kept_as_long_as_asked(jobs: Workshop) -> None:
    jobs("SET execution.batch.job-recovery.retention = 1 hour")
    jobs(f"CREATE TABLE t USING delta AS {QUERY}")
    (kept,) = jobs("SHOW JOBS")
    finished = [row for row in jobs(f"SHOW JOB EVENTS {kept.id}") if row.type == "ExecutionVertexFinished"]
    assert len(finished) == kept.parts - 1  # the sink's is the target's own commit
    jobs("SET execution.batch.job-recovery.retention = 0 seconds")
    jobs(f"CREATE TABLE u USING delta AS {QUERY}")
    assert not jobs_folder(jobs, kept.id).exists()


def test_the_statement_of_a_lost_job_resumes_it(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs a script again after a crash says nothing else. A failed job is not taken for a lost one."""
    expected = jobs.batch(BATCH.format("facts"))
    statement = f"CREATE TABLE IF NOT EXISTS t USING delta AS {QUERY}"
    job = killed(jobs, statement, die_after, monkeypatch, 2)
    with pytest.raises(PySparkException, match=f"Job {job} is already creating spark_catalog.default.t for another"):
        jobs(f"{statement} LIMIT 1")
    (answer,) = jobs(statement)
    assert "2 finished by an earlier driver" in answer[0]
    assert rows(jobs) == expected
    (row,) = jobs("SHOW JOBS")
    assert (row.id, row.status, row.skipped) == (job, "FINISHED", 2)


def test_of_two_drivers_one_ends_the_job(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one hangs instead of dying, and wakes when the second one has the job."""
    expected = jobs.batch(BATCH.format("facts"))
    jobs("CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta")
    commit = VertexTable.commit
    second: list[str] = []

    def hang(table: VertexTable, output: PartOutput) -> None:
        monkeypatch.undo()
        (row,) = jobs("SHOW JOBS")
        other = JobManager(jobs.spark, jobs.host._home, Lease(jobs.host._home))
        jobs.freeze()._lease.end()  # it gave no sign of life for too long
        from sqlext.commands import job_statements
        from sqlext.commands.option_levels import resolve_levels, session_levels

        second.append(other.resume(row.id, job_statements.fingerprints, resolve_levels(jobs.spark, session_levels(jobs.spark))))
        commit(table, output)

    monkeypatch.setattr(VertexTable, "commit", hang)
    # the part that hung, or another one that went on meanwhile: whichever notices first
    late = r"The folder of job \w+ is gone: it was ended or dropped|Another driver has taken over job \w+ with epoch 2"
    with pytest.raises(PySparkException, match=late):
        jobs(f"INSERT INTO t {QUERY}")
    assert len(second) == 1
    assert rows(jobs) == expected
    assert [row.status for row in jobs("SHOW JOBS")] == ["FINISHED"]


def test_a_pinned_version_that_is_gone(jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    job = killed(jobs, f"CREATE TABLE t USING delta AS {QUERY}", die_after, monkeypatch, 1)
    jobs("INSERT INTO facts VALUES (1, 1)")
    place = local(jobs("DESCRIBE DETAIL facts")[0].location)
    jobs("DROP TABLE facts")
    shutil.rmtree(place, ignore_errors=True)
    jobs.spark.range(5).selectExpr("id AS k", "id AS v").write.format("delta").saveAsTable("facts")
    jobs("INSERT INTO facts VALUES (1, 1)")
    with pytest.raises(PySparkException, match=r"of spark_catalog\.default\.facts, but another table is at its location now"):
        jobs(f"RESUME JOB {job}")


def test_pinned_files_that_were_changed(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs.spark.range(0, 90, 1, 3).selectExpr("id % 7 AS k", "id AS v").write.parquet(str(tmp_path / "in"))
    jobs(f"CREATE TABLE plain USING parquet LOCATION '{tmp_path / 'in'}'")
    statement = f"CREATE TABLE t USING delta AS {QUERY.replace('facts', 'plain')}"
    job = killed(jobs, statement, die_after, monkeypatch, 1)
    jobs.spark.range(3).selectExpr("id AS k", "id AS v").coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    assert job
    file = sorted((tmp_path / "in").glob("part-00001*.parquet"))[0]
    whole = file.read_bytes()
    file.unlink()
    with pytest.raises(PySparkException, match=r"reads the file .*part-00001.* of .*plain, which was deleted after the job"):
        jobs(f"RESUME JOB {job}")
    file.write_bytes(whole)
    with pytest.raises(PySparkException, match="which was changed after the job was submitted"):
        jobs(f"RESUME JOB {job}")


def test_a_changed_function_is_refused(jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlext.functions.scalar import FUNCTIONS, PythonFunction

    sqlext.register_function("twice_of_job", lambda value: 2 * value, "BIGINT")
    statement = f"CREATE TABLE t USING delta AS {QUERY.replace('sum(v)', 'sum(twice_of_job(v))')}"
    job = killed(jobs, statement, die_after, monkeypatch, 1)
    mine = FUNCTIONS.find("twice_of_job")
    changed = {**FUNCTIONS._functions, "twice_of_job": PythonFunction("twice_of_job", lambda value: 3 * value, "BIGINT")}
    monkeypatch.setattr(FUNCTIONS, "_functions", changed)
    with pytest.raises(PySparkException, match="were changed or are not registered: twice_of_job"):
        jobs(f"RESUME JOB {job}")
    monkeypatch.setattr(FUNCTIONS, "_functions", {**FUNCTIONS._functions, "twice_of_job": mine})
    jobs(f"RESUME JOB {job}")
    assert rows(jobs) == jobs.batch("SELECT k, count(*), 2 * sum(v) FROM facts GROUP BY k")


def test_a_failed_job_says_why_and_can_be_resumed(jobs: Workshop, tmp_path: Path) -> None:
    def careful(value: int) -> int:
        if not (tmp_path / "fixed").exists():
            raise ValueError("not yet")
        return value

    sqlext.register_function("careful_of_job", careful, "BIGINT")
    with pytest.raises(PySparkException, match="not yet"):
        jobs(f"CREATE TABLE t USING delta AS {QUERY.replace('sum(v)', 'sum(careful_of_job(v))')}")
    (row,) = jobs("SHOW JOBS")
    assert row.status == "FAILED"
    assert "not yet" in row.error
    (tmp_path / "fixed").touch()
    jobs(f"RESUME JOB {row.id[:8]}")
    assert rows(jobs) == jobs.batch(BATCH.format("facts"))


def test_cancel(jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    job = killed(jobs, f"CREATE TABLE t USING delta AS {QUERY}", die_after, monkeypatch, 2)
    assert jobs_folder(jobs, job).exists()
    jobs(f"CANCEL JOB {job}")
    assert not jobs_folder(jobs, job).exists()
    assert [row.status for row in jobs("SHOW JOBS")] == ["CANCELED"]
    for verb in ("RESUME", "CANCEL"):
        with pytest.raises(PySparkException, match=f"Job {job} is CANCELED"):
            jobs(f"{verb} JOB {job}")
    assert not jobs.spark.catalog.tableExists("t")


def test_a_store_that_cannot_be_written_fails_the_job(jobs: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the events is a file."""
    take = Fence.take

    def block(fence: Fence) -> None:
        take(fence)
        local(fence._home.child("events").location).touch()

    monkeypatch.setattr(Fence, "take", block)
    with pytest.raises(PySparkException, match="cannot be written"):
        jobs(f"CREATE TABLE t USING delta AS {QUERY}")
    monkeypatch.undo()
    (row,) = jobs("SHOW JOBS")
    assert row.status == "FAILED"
    assert not jobs.spark.catalog.tableExists("t")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("RESUME JOB nope", "There is no job `nope`.*SHOW JOBS lists them"),
        ("SHOW JOB EVENTS nope", "There is no job `nope`"),
        ("CANCEL JOB nope", "There is no job `nope`"),
        (
            f"CREATE TABLE t USING delta AS {QUERY.replace('STREAM facts', 'here')}",
            "cannot use here: temporary views and functions end with this session",
        ),
    ],
)
def test_mistakes(jobs: Workshop, statement: str, message: str) -> None:
    jobs("CREATE TEMPORARY VIEW here AS SELECT * FROM facts")
    with pytest.raises(PySparkException, match=message):
        jobs(statement)
    assert jobs("SHOW JOBS") == []


def test_nothing_that_is_secret_is_recorded(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.spark.conf.set("spark.my.password", "hunter2")
    killed(jobs, f"CREATE TABLE t USING delta AS {QUERY}", die_after, monkeypatch, 1)
    registry = local(jobs.host._home.child("jobs", "registry").location)
    texts = [file.read_text() for file in registry.glob("*.json")]
    assert any(json.loads(text)["kind"] == "submitted" for text in texts)
    assert not any("hunter2" in text for text in texts)


def jobs_folder(sql: Workshop, job: str) -> Path:
    return local(sql.host._home.child("jobs", job).location)


# Files.

OF_FILES = (
    "CREATE TABLE t USING delta AS SELECT k, count(*) AS n, max(file) AS file "
    "FROM (SELECT k, _metadata.file_name AS file FROM STREAM read_files({})) GROUP BY k GLOBAL WINDOW END OF STREAM"
)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    made = tmp_path / "landing"
    made.mkdir()
    for number in range(6):
        (made / f"{number}.json").write_text(json.dumps({"k": number % 2}))
    return made


def test_a_resumed_job_reads_the_files_of_then(
    jobs: Workshop, landing: Path, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a glob, with the columns that were inferred then."""
    job = killed(jobs, OF_FILES.format(f"'{landing}/*.json', format => 'json'"), die_after, monkeypatch, 1)
    (landing / "later.json").write_text(json.dumps({"k": "a text"}))
    jobs(f"RESUME JOB {job}")
    assert rows(jobs) == [(0, 3, "4.json"), (1, 3, "5.json")]


def test_a_job_whose_files_have_changed_is_not_resumed(
    jobs: Workshop, landing: Path, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = f"'{landing}', format => 'json', schema => 'k INT', rescuedDataColumn => 'rest'"
    job = killed(jobs, OF_FILES.format(call), die_after, monkeypatch, 1)
    (landing / "3.json").write_text(json.dumps({"k": 1, "more": 2}))
    with pytest.raises(PySparkException, match=r"3\.json of \S+landing, which was changed after the job was submitted"):
        jobs(f"RESUME JOB {job}")


# A job that was lost, and what has come since.


REPLACING = ("CREATE OR REPLACE TABLE t USING delta AS", "INSERT OVERWRITE t")


@pytest.mark.parametrize("head", REPLACING)
def test_the_statement_of_a_lost_job_that_replaces_rows_resumes_it(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    jobs("CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta")
    expected = jobs.batch(BATCH.format("facts"))
    job = killed(jobs, f"{head} {QUERY}", die_after, monkeypatch, 2)
    jobs("INSERT INTO facts VALUES (1, 1000000)")
    jobs("ALTER TABLE t SET TBLPROPERTIES ('mine' = 'yes')")  # as maintenance, this is not in the way
    (answer,) = jobs(f"{head} {QUERY}")
    assert "2 finished by an earlier driver" in answer[0]
    assert rows(jobs) == expected
    assert [(row.id, row.status) for row in jobs("SHOW JOBS")] == [(job, "FINISHED")]


@pytest.mark.parametrize("head", [*REPLACING, "CREATE TABLE new USING delta AS", "INSERT INTO t"])
def test_the_statement_of_a_lost_job_with_other_settings_is_another_one(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    query = "SELECT timestamp_seconds(k) = TIMESTAMP '1970-01-01 00:00:00' AS is_first, count(*) AS n FROM {} GROUP BY ALL"
    jobs("CREATE TABLE t (is_first BOOLEAN, n BIGINT) USING delta")
    statement = f"{head} {query.format('STREAM facts')} GLOBAL WINDOW END OF STREAM"
    jobs("SET TIME ZONE 'UTC'")
    job = killed(jobs, statement, die_after, monkeypatch, 2)
    jobs("SET TIME ZONE 'Asia/Tokyo'")
    jobs("SET spark.sql.shuffle.partitions = 3")  # changes no rows
    if head in REPLACING:
        jobs(statement)
        assert rows(jobs) == jobs.batch(query.format("facts"))
        assert [row.status for row in jobs("SHOW JOBS")] == ["FINISHED", "LOST"]
        return
    told = r"with the setting spark\.sql\.session\.timeZone = UTC, which is Asia/Tokyo here"
    with pytest.raises(PySparkException, match="of the same statement" if "INSERT" in head else told):
        jobs(statement)
    jobs("SET TIME ZONE 'UTC'")
    jobs(f"RESUME JOB {job}" if "INSERT" in head else statement)
    assert [(row.id, row.status) for row in jobs("SHOW JOBS")] == [(job, "FINISHED")]


@pytest.mark.parametrize("head", REPLACING)
def test_a_lost_job_does_not_replace_what_was_written_since(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    """The statement runs as a new job then."""
    jobs("CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta")
    job = killed(jobs, f"{head} {QUERY}", die_after, monkeypatch, 2)
    jobs("INSERT INTO facts VALUES (1, 1000000)")
    jobs("INSERT INTO t VALUES (1, 1, 1)")
    jobs(f"{head} {QUERY}")
    expected = jobs.batch(BATCH.format("facts"))
    assert rows(jobs) == expected, "a new job ran"
    with pytest.raises(PySparkException, match=rf"Job {job} .* spark_catalog\.default\.t, which .* after the job was submitted"):
        jobs(f"RESUME JOB {job}")
    assert rows(jobs) == expected
    new, lost = jobs("SHOW JOBS")
    assert (new.status, lost.id, lost.status) == ("FINISHED", job, "FAILED")


def test_the_statement_of_a_lost_job_that_appends_asks_what_to_do_with_it(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether its rows are wanted once or twice."""
    jobs("CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta")
    statement = f"INSERT INTO t {QUERY}"
    job = killed(jobs, statement, die_after, monkeypatch, 2)
    with pytest.raises(PySparkException, match=f"Job {job} of the same statement.*RESUME JOB {job}.*CANCEL JOB {job}"):
        jobs(statement)
    jobs("INSERT INTO t VALUES (100, 1, 1)")
    jobs(f"RESUME JOB {job}")
    jobs(statement)
    assert len(rows(jobs)) == 23


def test_a_table_that_somebody_else_made_meanwhile(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = jobs.batch(BATCH.format("facts"))
    statement = f"CREATE TABLE IF NOT EXISTS t USING delta AS {QUERY}"
    job = killed(jobs, statement, die_after, monkeypatch, 2)
    jobs("CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta")
    with pytest.raises(PySparkException, match=rf"Job {job} is to create spark_catalog\.default\.t, which somebody else"):
        jobs(f"RESUME JOB {job}")
    assert rows(jobs) == []
    (answer,) = jobs(statement)
    assert "no job was submitted" in answer[0]
    jobs("DROP TABLE t")
    jobs(f"RESUME JOB {job}")
    assert rows(jobs) == expected


def test_a_table_that_somebody_else_made_while_the_job_ran(jobs: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlext.execution.jobs import sink

    fill = sink.fill

    def late(*given: Any) -> None:
        jobs("CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta")
        fill(*given)

    monkeypatch.setattr(sink, "fill", late)
    with pytest.raises(PySparkException, match=r"is to create spark_catalog\.default\.t, which somebody else"):
        jobs(f"CREATE TABLE IF NOT EXISTS t USING delta AS {QUERY}")
    assert [row.status for row in jobs("SHOW JOBS")] == ["FAILED"]


def test_rows_that_came_while_an_overwriting_job_ran_are_not_replaced(jobs: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlext.execution.jobs import sink

    fill = sink.fill

    def late(*given: Any) -> None:
        jobs("INSERT INTO t VALUES (100, 1, 1)")
        fill(*given)

    jobs("CREATE TABLE t (k BIGINT, n BIGINT, s BIGINT) USING delta")
    jobs(f"INSERT OVERWRITE t {QUERY}")
    monkeypatch.setattr(sink, "fill", late)
    with pytest.raises(PySparkException, match=r"is to replace rows of spark_catalog\.default\.t, which was written by others"):
        jobs(f"INSERT OVERWRITE t {QUERY}")
    assert jobs.batch("SELECT count(*) FROM t") == [(12,)]
    monkeypatch.setattr(sink, "fill", fill)
    jobs(f"INSERT OVERWRITE t {QUERY}")
    assert len(rows(jobs)) == 11


def test_a_table_gets_what_is_noted_of_the_columns(jobs: Workshop) -> None:
    jobs("CREATE TABLE codes (c CHAR(5) COMMENT 'the code', v VARCHAR(9)) USING delta")
    jobs("INSERT INTO codes VALUES ('ab', 'x')")
    jobs("CREATE TABLE t USING delta AS SELECT c, v, c AS again FROM STREAM codes GLOBAL WINDOW END OF STREAM")
    jobs("CREATE TABLE plain USING delta AS SELECT c, v, c AS again FROM codes")
    assert jobs("DESCRIBE t") == jobs("DESCRIBE plain")
    assert jobs.batch("SELECT count(*) FROM t WHERE c = 'ab' AND again = 'ab'") == [(1,)]


def test_a_table_gets_the_collations_of_the_columns(jobs: Workshop) -> None:
    query = (
        "SELECT s COLLATE UNICODE_CI AS s, array(s COLLATE UTF8_LCASE) AS l, max(n) AS n "
        "FROM (SELECT concat('s', k) AS s, v AS n FROM {}) GROUP BY 1, 2"
    )
    with session_settings(jobs.spark, {"spark.databricks.delta.schema.typeCheck.enabled": "false"}):
        jobs(f"CREATE TABLE t USING delta AS {query.format('STREAM facts')} GLOBAL WINDOW END OF STREAM")
        jobs(f"CREATE TABLE plain USING delta AS {query.format('facts')}")
    assert jobs("DESCRIBE t") == jobs("DESCRIBE plain")
    assert "UNICODE_CI" in str(jobs("DESCRIBE t"))
    assert rows(jobs) == rows(jobs, "plain")


def test_partitions_in_folders_of_other_names(jobs: Workshop) -> None:
    jobs("CREATE TABLE parted (v BIGINT, p STRING, q INT) USING parquet PARTITIONED BY (p, q)")
    jobs("INSERT INTO parted VALUES (1, '1', 1), (2, '2', 2)")
    folder = local(next(row.data_type for row in jobs("DESCRIBE FORMATTED parted") if row.col_name == "Location"))
    jobs(f"ALTER TABLE parted PARTITION (p = '1', q = 1) SET LOCATION '{folder / 'p=1_v2'}'")
    jobs("INSERT INTO parted PARTITION (p = '1', q = 1) VALUES (10)")
    query = "SELECT v, p, q, count(*) AS n FROM {} WHERE p = '1' OR q = 2 GROUP BY ALL"
    jobs(f"CREATE TABLE t USING delta AS {query.format('STREAM parted')} GLOBAL WINDOW END OF STREAM")
    assert rows(jobs) == jobs.batch(query.format("parted")) == [(10, "1", 1, 1), (2, "2", 2, 1)]


def test_a_partition_that_was_dropped_while_its_file_stayed(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs(f"CREATE TABLE dim (k BIGINT, p INT) USING parquet PARTITIONED BY (p) LOCATION '{tmp_path}'")
    jobs("INSERT INTO dim VALUES (1, 1), (2, 2)")
    query = "SELECT d.p, count(*) AS n FROM facts AS f JOIN dim AS d ON f.k % 3 = d.k GROUP BY d.p GLOBAL WINDOW END OF STREAM"
    job = killed(jobs, f"CREATE TABLE t USING delta AS {query}", die_after, monkeypatch, 2)
    jobs("ALTER TABLE dim DROP PARTITION (p = 2)")
    with pytest.raises(PySparkException, match=r"p=2.* whose partition was dropped or moved since it was submitted"):
        jobs(f"RESUME JOB {job}")


def test_a_view_that_became_another_at_its_last_column(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = ", ".join(f"v + {at} AS c{at}" for at in range(30))
    view = f"CREATE OR REPLACE VIEW wide AS SELECT {many}, {{}} AS last FROM facts"
    jobs(view.format("v"))
    job = killed(jobs, "CREATE TABLE t USING delta AS SELECT * FROM wide GLOBAL WINDOW END OF STREAM", die_after, monkeypatch, 2)
    jobs(view.format("-v"))
    with pytest.raises(PySparkException, match="differently"):
        jobs(f"RESUME JOB {job}")


def test_a_view_over_other_values(jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    view = "CREATE OR REPLACE VIEW names AS SELECT * FROM VALUES (1, '{}') AS t (k, name)"
    query = "SELECT name, count(*) AS n FROM facts JOIN names USING (k) GROUP BY name GLOBAL WINDOW END OF STREAM"
    jobs(view.format("one"))
    job = killed(jobs, f"CREATE TABLE t USING delta AS {query}", die_after, monkeypatch, 1)
    jobs(view.format("uno"))
    with pytest.raises(PySparkException, match="differently"):
        jobs(f"RESUME JOB {job}")
    jobs(view.format("one"))
    jobs(f"RESUME JOB {job}")
    assert jobs.batch("SELECT name FROM t") == [("one",)]


def test_a_job_that_has_filled_its_table_is_not_canceled(jobs: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    filled_before_the_end(jobs, monkeypatch)
    (row,) = jobs("SHOW JOBS")
    (answer,) = jobs(f"CANCEL JOB {row.id}")
    assert "was already filled" in answer[0]
    assert [row.status for row in jobs("SHOW JOBS")] == ["FINISHED"]
    assert len(rows(jobs)) == 11


def test_a_job_that_is_canceled_while_its_table_is_filled(jobs: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlext.execution.jobs import sink

    fill, said = sink.fill, Future[str]()

    def late(*given: Any) -> None:
        ((job, _),) = jobs.host.jobs._runs.values()
        canceling = threading.Thread(target=lambda: said.set_result(jobs.host.jobs.cancel(job.id)))
        canceling.start()
        eventually(lambda: jobs.host.jobs.views()[0].status == "CANCELED", 60)
        fill(*given)

    monkeypatch.setattr(sink, "fill", late)
    with contextlib.suppress(PySparkException):  # whatever the driver notices first
        jobs(f"CREATE TABLE t USING delta AS {QUERY}")
    answer, (row,) = said.result(60), jobs("SHOW JOBS")
    is_there = jobs.spark.catalog.tableExists("t")
    assert (row.status == "FINISHED") == ("was already filled" in answer) == is_there


def test_a_job_that_another_process_cancels_while_its_table_is_filled(jobs: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlext.execution.jobs import run, sink

    fill, said = sink.fill, list[str]()

    def late(*given: Any) -> None:
        fill(*given)
        ((job, _),) = jobs.host.jobs._runs.values()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sink, "is_filled", lambda *_: False)  # as it was when the other process looked
            said.append(JobManager(jobs.spark, jobs.host._home, Lease(jobs.host._home)).cancel(job.id))

    monkeypatch.setattr(sink, "fill", late)
    monkeypatch.setattr(run, "TICK_SECONDS", 60.0)  # the driver notices only afterwards
    with pytest.raises(PySparkException, match=r"The folder of job .* is gone"):
        jobs(f"CREATE TABLE t USING delta AS {QUERY}")
    assert "SHOW JOBS shows FINISHED if it fills the table before" in said[0]
    assert [row.status for row in jobs("SHOW JOBS")] == ["FINISHED"]
    assert rows(jobs) == jobs.batch(BATCH.format("facts"))


def test_show_jobs_counts_all_parts_of_a_resumed_job(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs(f"CREATE TABLE whole USING delta AS {QUERY}")
    (whole,) = jobs("SHOW JOBS")
    jobs(f"RESUME JOB {killed(jobs, f'CREATE TABLE t USING delta AS {QUERY}', die_after, monkeypatch, 2)}")
    resumed = jobs("SHOW JOBS")[0]
    assert (resumed.parts, resumed.skipped) == (whole.parts, 2)


def test_a_resumed_job_keeps_its_random_seeds_and_its_time_of_day(
    jobs: Workshop, die_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = (
        "SELECT k, max(r) AS r, max(s) AS s, min(u) AS u, CAST(current_time() AS STRING) AS at "
        "FROM (SELECT k, rand() AS r, rand(7) AS s, uuid() AS u FROM STREAM facts) GROUP BY k GLOBAL WINDOW END OF STREAM"
    )
    job = killed(jobs, f"CREATE TABLE t USING delta AS {query}", die_after, monkeypatch, 1)
    jobs(f"RESUME JOB {job}")
    assert (jobs("SHOW JOBS")[0].status, jobs("SHOW JOBS")[0].skipped) == ("FINISHED", 1)
    ((groups, times, values, ids),) = jobs.batch(
        "SELECT count(*), count(DISTINCT at), count(DISTINCT r), count(DISTINCT u) FROM t"
    )
    assert (groups, times, values, ids) == (11, 1, 11, 11)
