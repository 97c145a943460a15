"""Queries run by pieces and parts, as a recoverable job runs them, give the rows that Spark gives; and go on where they were."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import JobError
from sqlext.execution.jobs import division
from sqlext.execution.jobs.events import JobEvent
from sqlext.execution.jobs.execution_graph import ExecutionVertex, VertexKind
from sqlext.execution.jobs.fragments import FragmentedPlan, cut
from sqlext.execution.jobs.run import JobRun, RunSettings, prepare
from sqlext.spark import jvm, sorted_plan
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

BUCKETS = 2
QUERIES = {
    "aggregate": "SELECT k, count(*) AS n, sum(v) AS s, collect_set(v % 7) AS c, count(DISTINCT w) AS d FROM facts GROUP BY k",
    "one row": "SELECT count(*) AS n, max(s) AS s FROM facts WHERE v < 0",
    "join": "SELECT n, sum(v) AS s FROM facts JOIN names USING (k) WHERE v > (SELECT avg(v) FROM facts) GROUP BY n",
    "broadcast": "SELECT /*+ BROADCAST(names) */ n, sum(v) AS s FROM facts JOIN names USING (k) GROUP BY n",
    "self-join": "WITH a AS (SELECT w, count(*) n FROM facts GROUP BY w) SELECT x.w, y.n FROM a x FULL JOIN a y ON x.n = y.n",
    "union": "SELECT k, count(*) AS n FROM (SELECT k FROM facts UNION ALL SELECT k FROM names) GROUP BY k ORDER BY n, k LIMIT 3",
    "offset": "SELECT v, IF(v < 500, '', sha2(CAST(v AS STRING), 512)) AS pad FROM facts ORDER BY v OFFSET 10",
    "window": "SELECT k, v AS x, row_number() OVER (PARTITION BY k ORDER BY v) AS x FROM facts WHERE v < 50",
    "partitions": "SELECT spark_partition_id() - spark_partition_id() AS p, w, count(*) AS n FROM facts GROUP BY ALL",
}


class Job:
    """A job over its own folder; each `run` is that of another driver."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder = folder
        self.events: list[JobEvent] = []
        self.epoch = 0
        self.rows: list[tuple[Any, ...]] | None = None

    def run(self, query: str) -> JobRun:
        self.epoch += 1
        self.rows = None
        own = jvm.clone_session(self._spark)
        prepare(own, BUCKETS)
        frame = own.sql(query)
        settings = RunSettings("job", self.epoch, HadoopPath(own, str(self.folder)), tuple(frame.schema.fields), slots=2)
        pieces = self.cut(own, frame)
        ticks = (lambda: None, lambda: None)
        run = JobRun(own, pieces, settings, tuple(self.events), self.events.append, lambda: None, self._write, *ticks)
        run.run()
        return run

    def cut(self, own: SparkSession, frame: DataFrame) -> FragmentedPlan:
        return cut(own, frame._jdf.queryExecution().analyzed())

    def table(self, vertex: int) -> Path:
        return next(self.folder.glob(f"vertex-{vertex}-*"))

    def _write(self, rows: DataFrame) -> None:
        self.columns = rows.columns
        self.sink_tasks = rows.rdd.getNumPartitions()
        self.rows = sorted(map(tuple, rows.collect()), key=str)


@pytest.fixture(autouse=True)
def every_result_is_kept() -> Iterator[None]:
    """As those of large jobs are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "KEPT_BYTES", 0)
        yield


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    rows = spark.range(0, 1000, 1, 1).selectExpr("id % 13 AS k", "id AS v", "id % 2 AS w", "concat('s', id % 3) AS s")
    rows.write.format("delta").partitionBy("w").saveAsTable("facts")
    rows.selectExpr("k", "concat('n', k % 4) AS n").distinct().write.format("parquet").saveAsTable("names")
    return Job(spark, tmp_path / "job")


def expected(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.sql(query).collect()), key=str)


@pytest.mark.parametrize("last", ["kept", "left to the sink"])
@pytest.mark.parametrize("name", QUERIES)
def test_the_rows_are_those_of_the_query(
    spark: SparkSession, job: Job, name: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    if last != "kept":
        monkeypatch.setattr(division, "KEPT_BYTES", 2**30)
    query = QUERIES[name]
    run = job.run(query)
    assert job.rows == expected(spark, query)
    assert job.columns == spark.sql(query).columns
    assert run.progress.skipped == frozenset()


def test_each_kind_of_vertex_is_divided(spark: SparkSession, job: Job) -> None:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    run = job.run(QUERIES["join"])
    kinds = [vertex.kind for vertex in run.progress.graph.vertices]
    assert kinds == [VertexKind.SOURCE, VertexKind.SOURCE, VertexKind.BUCKETS, VertexKind.BUCKETS, VertexKind.SINK]
    parts = [run.progress.parallelism[vertex] for vertex in range(5)]
    assert parts[0] > 1, "slices"
    assert parts[2] == BUCKETS
    assert parts[4] == 1


def test_a_small_last_result_is_written_once(spark: SparkSession, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "KEPT_BYTES", 2**30)
    run = job.run(QUERIES["aggregate"])
    last = run.progress.graph.sink.inputs[0]
    assert run.progress.parallelism[last] == BUCKETS
    assert run.progress.counts().left == run.progress.counts().running == 0
    assert not list(job.folder.glob(f"vertex-{last}-*"))
    assert job.rows == expected(spark, QUERIES["aggregate"])
    assert job.sink_tasks == BUCKETS, "its groups of buckets run side by side"


def test_what_a_query_has_twice_runs_once(spark: SparkSession, job: Job) -> None:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    run = job.run(QUERIES["self-join"])
    assert [vertex.kind for vertex in run.progress.graph.vertices].count(VertexKind.SOURCE) == 1
    assert job.rows == expected(spark, QUERIES["self-join"])


def test_what_has_finished_is_not_run_again(spark: SparkSession, job: Job) -> None:
    query = QUERIES["aggregate"]
    first = job.run(query)
    done = first.progress.finished - {ExecutionVertex(first.progress.graph.sink.id, 0)}
    second = job.run(query)
    assert second.progress.skipped == done
    assert job.rows == expected(spark, query)


def change_log(job: Job, change: Callable[[str], str]) -> None:
    """Change the last commit of the first vertex; Hadoop's checksum of it goes where there is one, as most storages keep none."""
    log = sorted(job.table(0).glob("_delta_log/*.json"))[-1]
    log.write_text(change(log.read_text()))
    log.with_name(f".{log.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_lost_file_is_made_again(spark: SparkSession, job: Job, damage: str) -> None:
    query = QUERIES["aggregate"]
    whole = job.run(query)
    last = whole.progress.graph.sink.inputs[0]
    file = sorted(job.table(last).glob("part-*/*/*.parquet"))[0]
    file.unlink() if damage == "gone" else os.truncate(file, file.stat().st_size // 2)
    resumed = job.run(query)
    lost = whole.progress.finished - resumed.progress.skipped - {ExecutionVertex(whole.progress.graph.sink.id, 0)}
    assert len(lost) == 1
    assert job.rows == expected(spark, query)


def test_what_has_read_a_lost_result_is_run_again(spark: SparkSession, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run again, rows may come in another order, and by what depends on it into other buckets; also if the next driver dies."""
    query = QUERIES["aggregate"]
    whole = job.run(query)
    for vertex in range(whole.progress.graph.sink.id):
        sorted(job.table(vertex).glob("part-*/*/*.parquet"))[0].unlink()
    finish, first = JobRun._finish, {ExecutionVertex(0, part) for part in range(whole.progress.parallelism[0])}

    def dies(run: JobRun, part: ExecutionVertex, *rest: Any) -> None:
        if part.vertex > 0:
            assert not {each for each in run.progress.skipped if each.vertex > 0}
            raise OSError("died here")
        finish(run, part, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(JobRun, "_finish", dies)
        with pytest.raises(OSError, match="died here"):
            job.run(query)
    resumed = job.run(query)
    assert resumed.progress.skipped == first
    assert job.rows == expected(spark, query)


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_file_that_is_lost_before_it_is_read_is_an_error(
    spark: SparkSession, job: Job, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Also in a session that leaves such files out of its own tables."""
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    write = job._write

    def late(rows: DataFrame) -> None:
        file = sorted(job.folder.glob("vertex-*/part-*/*/*.parquet"))[-1]
        file.unlink() if damage == "gone" else os.truncate(file, file.stat().st_size // 2)
        write(rows)

    monkeypatch.setattr(job, "_write", late)
    with pytest.raises(SPARK_ERRORS, match="FAILED_READ_FILE"):
        job.run(QUERIES["aggregate"])
    assert job.rows is None


def test_partitions_that_a_subquery_chooses(spark: SparkSession, job: Job) -> None:
    spark.sql("SELECT v, k FROM facts").write.format("parquet").partitionBy("k").saveAsTable("by_k")
    query = "SELECT w, count(*) AS n FROM {} WHERE {} = (SELECT max({}) FROM {}) GROUP BY w"
    for given in ("(SELECT v, k, k % 2 AS w FROM by_k)", "k", "k", "names"), ("facts", "w", "k % 2", "names"):
        job.folder = job.folder.with_name(f"job of {given[1]}")
        job.events.clear()
        job.run(query.format(*given))
        assert job.rows == expected(spark, query.format(*given)) != []


def test_a_commit_that_is_torn_is_run_again(spark: SparkSession, job: Job) -> None:
    query = QUERIES["aggregate"]
    whole = job.run(query)
    change_log(job, lambda text: text[:-30])
    resumed = job.run(query)
    assert len(resumed.progress.skipped) == len(whole.progress.finished) - 2
    assert job.rows == expected(spark, query)


def test_a_job_that_another_version_wrote_is_refused(job: Job) -> None:
    query = QUERIES["aggregate"]
    job.run(query)
    change_log(job, lambda text: text.replace('\\"version\\":1', '\\"version\\":2'))
    with pytest.raises(JobError, match="version 2; this sqlext reads version 1"):
        job.run(query)


def test_results_are_delta_tables(spark: SparkSession, job: Job) -> None:
    """An independent reader sees the rows of each part, partitioned by bucket, and one commit for each."""
    run = job.run("SELECT k, count(*) AS n FROM facts GROUP BY k")
    last = run.progress.graph.sink.inputs[0]
    table = deltalake.DeltaTable(str(job.table(last)))
    assert sorted(table.to_pyarrow_table(columns=["c0", "c1"]).to_pylist(), key=str) == [
        {"c0": k, "c1": n} for k, n in sorted(expected(spark, "SELECT k, count(*) AS n FROM facts GROUP BY k"), key=str)
    ]
    assert table.metadata().partition_columns == ["bucket"]
    assert table.version() == run.progress.parallelism[last]


def test_the_same_query_has_the_same_fingerprint_and_another_one_has_not(spark: SparkSession, job: Job) -> None:
    own = jvm.clone_session(spark)
    prepare(own, BUCKETS)
    one, again, other = (
        job.cut(own, own.sql(query)).fingerprint
        for query in (QUERIES["join"], QUERIES["join"], QUERIES["join"].replace("sum", "min"))
    )
    assert one == again != other


WIDE = ", ".join(f"v + {at} AS c{at}" for at in range(40))
LOCAL_ROWS = [
    ("(1, 'x'), (2, 'y')", "(1, 'x'), (2, 'z')"),
    ("(1, NULL)", "(NULL, 1)"),
    ("(X'01', map('a', array(1.5)))", "(X'02', map('a', array(1.5)))"),
    ("(X'01', map('a', array(1.6)))", "(X'01', map('a', array(1.5)))"),
    ("(named_struct('x', DATE '2024-01-01'), INTERVAL 1 MONTH)", "(named_struct('x', DATE '2024-01-02'), INTERVAL 1 MONTH)"),
]
OTHERS = {
    f"SELECT {WIDE}, v AS last FROM facts": f"SELECT {WIDE}, -v AS last FROM facts",
    "SELECT a.k FROM facts a JOIN facts b ON a.k = b.k AND a.v > b.v": (
        "SELECT a.k FROM facts a JOIN facts b ON a.k = b.k AND b.v > a.v"
    ),
    "SELECT v AS x, k AS y FROM (SELECT k, v + 1 AS v FROM facts)": (
        "SELECT k AS x, v AS y FROM (SELECT k, v + 1 AS v FROM facts)"
    ),
    "SELECT * FROM facts WHERE w IN (0, 1)": "SELECT * FROM facts WHERE w IN (0, 1, 2)",
    **{f"SELECT * FROM VALUES {one} AS t (a, b)": f"SELECT * FROM VALUES {other} AS t (a, b)" for one, other in LOCAL_ROWS},
    "SELECT v FROM facts WHERE k IN (SELECT max(a) FROM VALUES (1) AS t (a))": (
        "SELECT v FROM facts WHERE k IN (SELECT max(a) FROM VALUES (2) AS t (a))"
    ),
    "SELECT v + (SELECT max(a) FROM VALUES (1), (2) AS t (a)) FROM facts": (
        "SELECT v + (SELECT max(a) FROM VALUES (1), (3) AS t (a)) FROM facts"
    ),
    "SELECT v, a FROM facts JOIN VALUES (1, 'x') AS t (k, a) USING (k)": (
        "SELECT v, a FROM facts JOIN VALUES (1, 'y') AS t (k, a) USING (k)"
    ),
}


@pytest.mark.parametrize("query", OTHERS)
def test_what_a_fingerprint_tells_apart(spark: SparkSession, job: Job, query: str) -> None:
    own = jvm.clone_session(spark)
    prepare(own, BUCKETS)
    one, again, other = (job.cut(own, own.sql(each)).fingerprint for each in (query, query, OTHERS[query]))
    assert one == again != other


def test_the_plan_of_a_job_does_not_depend_on_the_files_that_are_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    own = jvm.clone_session(spark)
    prepare(own, BUCKETS)
    own.range(0, 20000, 1, 1).selectExpr("concat(repeat('a long string', 10), id) AS k").write.parquet(str(tmp_path / "many"))
    analysed = own.read.parquet(str(tmp_path / "many")).groupBy("k").count()._jdf.queryExecution().analyzed()
    stage = sorted_plan.end_of_stream(own, analysed, is_sorted=True).collectLeaves().head()
    assert "many_keys" in stage.physicalPlan().toString()
    plans = "".join(fragment.plan.toString() for fragment in cut(own, analysed, is_sorted=True).fragments)
    assert "SortAggregate" in plans
    assert "many_keys" not in plans


def test_the_partitions_that_a_query_asks_for_are_kept(spark: SparkSession, job: Job) -> None:
    """Else a function over the rows of each key gets them in pieces, once the result below it has many files."""
    query = (
        "SELECT k, count(DISTINCT p) AS n FROM (SELECT k, spark_partition_id() AS p FROM (SELECT k FROM facts DISTRIBUTE BY k))"
    )
    small = {"spark.sql.files.maxPartitionBytes": "1", "spark.sql.files.openCostInBytes": "1"}
    with session_settings(spark, small):
        job.run(f"{query} GROUP BY k")
    assert job.rows
    assert {n for _, n in job.rows} == {1}
