"""Queries with GLOBAL WINDOW END OF STREAM on Spark: the plan, and the same rows as a plain batch query."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from sqlext.spark import jvm
from sqlext.spark.physical_plan import frame_over, physical_plan
from tests.integration.workshop import Workshop
from tests.support import rows

END = "GLOBAL WINDOW END OF STREAM"
SORTED = ["SortAggregate", "Sort", "Exchange", "HashAggregate"]  # from the top down
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total FROM {} GROUP BY k"


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables' files, written once; no test changes them."""
    folder = tmp_path_factory.mktemp("data")
    events = spark.sql(
        "SELECT CASE WHEN id % 7 = 0 THEN NULL ELSE concat('k', id % 50) END AS k, CAST(id % 13 AS INT) AS v, id AS i, "
        "CASE WHEN id % 5 = 0 THEN double('NaN') ELSE id / 4 END AS d, "
        "named_struct('a', id % 3, 'b', CAST(id % 2 AS STRING)) AS s, timestamp_seconds(id) AS ts FROM range(2000)"
    )
    events.write.format("delta").save(str(folder / "ev"))
    spark.sql("SELECT concat('k', id) AS k, id AS w FROM range(0, 60, 3)").write.format("delta").save(str(folder / "dim"))
    return folder


@pytest.fixture
def events(sql: Workshop, data: Path) -> Workshop:
    for table in ("ev", "dim"):
        sql(f"CREATE TABLE {table} USING delta LOCATION '{data / table}'")
    return sql


def operators(spark: SparkSession, query: str) -> list[str]:
    """The operators that matter of a query's initial physical plan, from the top down."""
    plan = spark.sql(query)._jdf.queryExecution().executedPlan().toString()
    return re.findall(r"\b(SortAggregate|HashAggregate|ObjectHashAggregate|Sort(?=\b )|Exchange|SortMergeJoin)\b", plan)


AGGREGATES = [
    "count(*), count(d), count(DISTINCT v), count(v) FILTER (WHERE v > 3), sum(v), sum(DISTINCT v), avg(d), avg(i), try_sum(v), "
    "min(d), max(d), min(s), max(ts), min_by(v, i), max_by(v, i), count_if(v = 1), max(named_struct('a', v, 'b', i))",
    "stddev_pop(i), var_pop(i), covar_pop(i, v), skewness(i), bool_and(v > 0), every(v < 20), bool_or(v > 11), bit_and(v), "
    "bit_or(v), bit_xor(v), any_value(v) IS NOT NULL, approx_count_distinct(i), hll_sketch_estimate(hll_sketch_agg(i))",
    "sort_array(collect_list(v)), sort_array(collect_set(v)), size(array_agg(i)), median(v), mode(v, true), "
    "listagg(DISTINCT k) WITHIN GROUP (ORDER BY k), percentile(i, 0.5), percentile_cont(0.3) WITHIN GROUP (ORDER BY i)",
]


@pytest.mark.parametrize("aggregates", AGGREGATES)
@pytest.mark.parametrize("keys", ["GROUP BY s, d", "GROUP BY ROLLUP (k, v)", ""])
def test_every_aggregate_gives_what_a_batch_query_gives(events: Workshop, keys: str, aggregates: str) -> None:
    having = "HAVING count(*) > 3" if keys else ""
    query = f"SELECT {aggregates} FROM {{}} {keys} {having}"
    found, expected = (events.batch(text) for text in (query.format("STREAM ev") + f" {END}", query.format("ev")))
    assert without_rounding(found) == without_rounding(expected)


def without_rounding(found: list[tuple[Any, ...]]) -> list[str]:
    """Sums of fractions depend on their order in the last digits; NaN is NaN here."""
    return sorted(str([f"{value:.9g}" if isinstance(value, float) else value for value in row]) for row in found)


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        (COUNTS.format("ev"), SORTED),
        (COUNTS.format("STREAM ev"), SORTED),
        ("SELECT k, collect_list(v) FROM ev GROUP BY k", ["SortAggregate", "Sort", "Exchange", "ObjectHashAggregate"]),
        (
            "SELECT k, count(DISTINCT v) FROM ev GROUP BY k",
            ["SortAggregate", "Sort", "Exchange", "HashAggregate", "SortAggregate", "Sort", "Exchange", "HashAggregate"],
        ),
        ("SELECT DISTINCT k FROM ev", SORTED),
        ("SELECT count(*) FROM ev WHERE v > 1", ["HashAggregate", "Exchange", "HashAggregate"]),
        (
            "SELECT /*+ MERGE(b) */ a.v, count(*) FROM ev a JOIN ev b USING (i) GROUP BY a.v",
            [*SORTED, "SortMergeJoin", "Sort", "Exchange", "Sort", "Exchange"],
        ),
    ],
)
def test_the_plan_is_sorted(events: Workshop, query: str, plan: list[str]) -> None:
    assert operators(events.spark, f"{query} {END}") == plan
    assert events.batch(f"{query} {END}") == events.batch(query.replace("STREAM", ""))


@pytest.mark.parametrize(
    ("keys", "order"),
    [("v", r"v#\d+L?"), ("k", r"xxhash64\(k#\d+, 42\) AS hash#\d+L ASC NULLS FIRST, k#\d+"), ("k, v", r"xxhash64\(k#\d+, v#")],
)
def test_keys_are_sorted_by_their_hash_unless_they_are_one_number(events: Workshop, keys: str, order: str) -> None:
    plan = events.spark.sql(f"SELECT {keys}, count(*) FROM ev GROUP BY {keys} {END}")._jdf.queryExecution().toString()
    assert re.search(rf"Sort \[{order}", plan)


@pytest.mark.parametrize("kind", ["parquet", "delta", "delta with column mapping"])
def test_strings_that_a_file_has_no_dictionary_of_have_one_map_only(sql: Workshop, kind: str) -> None:
    mapping = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')" if "mapping" in kind else ""
    many = "concat(repeat('a long string', 10), IF(id % 9 = 0, NULL, id % 9000))"
    rows = f"SELECT {many} AS many, concat('of ', id % 7) AS few, id % 3 AS v FROM range(0, 20000, 1, 1)"
    sql(f"CREATE TABLE words USING {kind.split()[0]} {mapping} AS {rows}")
    sql("INSERT INTO words VALUES (NULL, NULL, 1)")  # a small file, without any dictionary
    some, distinct = "count(*), sum(v), first(v, true)", "avg(v), count(DISTINCT few)"
    for keys, aggregates in (("many", some), ("many", distinct), ("v, many", distinct), ("few", some), ("upper(many)", some)):
        query = f"SELECT {keys}, {aggregates} FROM words WHERE v < 2 GROUP BY {keys}"
        plan = sql.spark.sql(f"{query} {END}")._jdf.queryExecution().toString()
        assert ("many_keys" in plan) == keys.endswith("many"), query
        assert sql.batch(f"{query} {END}") == sql.batch(query)


def test_sorting_can_be_turned_off(events: Workshop) -> None:
    events("SET execution.sorted-shuffles.enabled = false")
    try:
        assert operators(events.spark, f"{COUNTS.format('ev')} {END}") == ["HashAggregate", "Exchange", "HashAggregate"]
    finally:
        events.spark.conf.unset("execution.sorted-shuffles.enabled")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, n FROM (SELECT k, count(*) AS n FROM ev GROUP BY k {}) WHERE n > 20",
        "SELECT w, n FROM dim JOIN (SELECT k, count(*) AS n FROM ev GROUP BY k {}) USING (k)",
        "WITH c AS (SELECT k, count(*) AS n FROM ev GROUP BY k {}) SELECT a.k, b.n FROM c a JOIN c b USING (k)",
        "WITH e AS (SELECT * FROM ev WHERE v > 2), c AS (SELECT k, max(i) AS m FROM e GROUP BY k {}) SELECT * FROM c, dim",
        "SELECT k, (SELECT max(v) FROM ev {0}) AS m FROM ev GROUP BY k {0}",
        "SELECT max(n) FROM (SELECT count(*) AS n FROM ev GROUP BY k {0}) {0}",
        "SELECT k FROM ev GROUP BY k {0} UNION ALL SELECT k FROM dim {0}",
        "SELECT a.i, b.v FROM ev a JOIN ev b ON a.i = b.i + 1 {}",
        "SELECT k, sum(v) OVER (PARTITION BY k ORDER BY i) FROM ev {}",
        "SELECT k, v FROM ev WHERE i IN (SELECT w FROM dim) {}",
        "SELECT * FROM (SELECT 1 AS one FROM ev GROUP BY 1 {}) x CROSS JOIN (SELECT 2)",
    ],
)
def test_it_stands_wherever_a_query_can(events: Workshop, query: str) -> None:
    assert events.batch(query.format(END)) == events.batch(query.format(""))


def test_columns_are_called_as_the_query_calls_them(events: Workshop) -> None:
    """Spark's optimizer calls them as the table does."""
    query = f"SELECT E.V, avg(DISTINCT i) FILTER (WHERE d > 1) AS m FROM ev AS e GROUP BY v {END}"
    assert events(query)[0].__fields__ == ["V", "m"]


def test_order_and_limit_behind_it(events: Workshop) -> None:
    query = "SELECT v, count(*) AS n FROM ev GROUP BY v {} ORDER BY n DESC, v LIMIT 4 OFFSET 1"
    assert events(query.format(END)) == events(query.format(""))


OF_20_ROWS = f"(SELECT e.i, d.w FROM ev e LEFT JOIN dim d ON e.k = d.k {END})"
OF_ONE_ROW = f"(SELECT e.i, e.v, m.v AS most FROM ev e CROSS JOIN (SELECT max(v) AS v FROM ev) m {END})"


def test_what_stands_above_it_holds_whatever_ran_first_below(events: Workshop) -> None:
    """Spark took the rows of the first exchange that had run, such as a small table's, for the rows of the query."""
    spark = events.spark
    limited = f"SELECT * FROM {OF_20_ROWS} LIMIT 50"
    assert len(events(limited)) == 50
    assert len(spark.sql(OF_20_ROWS[1:-1]).limit(50).collect()) == 50
    spark.conf.set("spark.sql.cbo.enabled", "true")  # then estimates are taken for it, too
    assert len(events(limited)) == 50
    assert [row.i for row in events(f"SELECT i FROM {OF_ONE_ROW} ORDER BY i DESC")] == list(range(1999, -1, -1))
    assert len(events(f"SELECT DISTINCT v FROM {OF_ONE_ROW}")) == 13
    assert events(f"SELECT count(DISTINCT v) FROM {OF_ONE_ROW}") == [(13,)]


def test_the_rows_of_a_physical_plan_are_unknown_above_it(events: Workshop) -> None:
    spark = events.spark
    plan = physical_plan(spark.sql("SELECT e.i FROM ev e LEFT JOIN dim d ON e.k = d.k"))
    assert frame_over(spark, plan, [jvm.alias(spark, plan.output().head(), "i")]).limit(50).count() == 50


def test_the_order_and_partitions_of_its_rows_are_known_above_it(events: Workshop) -> None:
    query = f"SELECT v, i, n FROM (SELECT v, i, count(*) AS n FROM ev GROUP BY v, i {END})"
    assert operators(events.spark, f"SELECT v, i, max(n) FROM ({query}) GROUP BY v, i").count("Exchange") == 1
    number = f"SELECT i, max(n) OVER (PARTITION BY i) AS n FROM (SELECT i, count(*) AS n FROM ev GROUP BY i {END})"
    found = operators(events.spark, number)
    assert (found.count("Exchange"), found.count("Sort")) == (1, 1)


def test_a_job_fills_a_table_and_tells_its_rows(events: Workshop) -> None:
    made = events(f"CREATE TABLE counts USING delta AS {COUNTS.format('STREAM ev')} {END}")[0].command_output
    assert re.fullmatch(r"job [0-9a-f]{32} finished into counts, 51 rows, \d+\.\d s", made)
    assert events.batch("SELECT * FROM counts") == events.batch(COUNTS.format("ev"))
    more = events(f"INSERT INTO counts {COUNTS.format('ev')} HAVING k = 'k1' {END}")[0].command_output
    assert re.search(r" finished into counts, 1 rows, ", more)
    assert events.batch("SELECT count(*) FROM counts WHERE k = 'k1'") == [(2,)]
    events(f"INSERT OVERWRITE counts SELECT k, 0, 0 FROM dim {END}")
    assert events.batch("SELECT count(*), sum(n) FROM counts") == [(20, 0)]


@pytest.mark.parametrize("kind", ["TEMPORARY VIEW", "VIEW"])
def test_a_view_is_computed_when_it_is_read(events: Workshop, kind: str) -> None:
    events("CREATE TABLE own USING delta AS SELECT 1 AS a")
    events(f"CREATE {kind} now AS SELECT count(*) AS n FROM STREAM own {END}")
    assert events.batch("SELECT n FROM now") == [(1,)]
    events("INSERT INTO own VALUES (2)")
    session = events.spark if kind == "TEMPORARY VIEW" else events.spark.newSession()
    assert session.sql("SELECT n FROM now").collect() == [(2,)]
    events("DROP VIEW now")


def test_nothing_runs_before_the_query_does(events: Workshop) -> None:
    frame = events.spark.sql(f"SELECT raise_error('ran'), k FROM ev GROUP BY k {END}")
    assert frame.columns[1] == "k"


def test_views_over_streams_are_read_to_their_ends(events: Workshop, tmp_path: Path) -> None:
    spark = events.spark
    spark.table("ev").select("k", "v").write.parquet(str(tmp_path / "files"))
    spark.readStream.table("ev").createOrReplaceTempView("as_stream")
    spark.readStream.schema("k STRING, v INT").parquet(str(tmp_path / "files")).createOrReplaceTempView("as_files")
    spark.readStream.table("ev").where("v > 3").withWatermark("ts", "1 minute").createOrReplaceTempView("filtered")
    try:
        for view, table in (("as_stream", "ev"), ("as_files", "ev"), ("filtered", "(SELECT * FROM ev WHERE v > 3)")):
            assert events.batch(f"{COUNTS.format(f'STREAM {view}')} {END}") == events.batch(COUNTS.format(table))
    finally:
        for view in ("as_stream", "as_files", "filtered"):
            spark.catalog.dropTempView(view)


def test_a_watermark_says_nothing_here(events: Workshop) -> None:
    query = f"{COUNTS.format('STREAM ev WATERMARK ts DELAY OF INTERVAL 1 MINUTE')} {END}"
    assert events.batch(query) == events.batch(COUNTS.format("ev"))


@pytest.mark.parametrize("name", ["startingVersion", "startingtimestamp"])
@pytest.mark.parametrize("is_table", [True, False])
def test_a_view_over_a_part_of_a_stream_is_refused_by_name(events: Workshop, data: Path, name: str, is_table: bool) -> None:
    """A batch ignores where it is to begin."""
    reader = events.spark.readStream.option(name, {"startingVersion": "0"}.get(name, "2020-01-01"))
    part = reader.table("ev") if is_table else reader.format("delta").load(str(data / "ev"))
    part.createOrReplaceTempView("part")
    try:
        with pytest.raises(PySparkException, match=rf"(?i)`{name}` = .* of a view over readStream has no meaning here"):
            events(f"SELECT count(*) FROM STREAM part {END}")
    finally:
        events.spark.catalog.dropTempView("part")


def test_a_source_without_end_is_refused_by_name(events: Workshop) -> None:
    events.spark.readStream.format("rate").load().createOrReplaceTempView("ticks")
    try:
        with pytest.raises(Exception, match="The source `rate` has no end"):
            events(f"SELECT count(*) FROM STREAM ticks {END}")
    finally:
        events.spark.catalog.dropTempView("ticks")


def test_errors_of_sparks_keep_type_and_place(events: Workshop) -> None:
    with pytest.raises(AnalysisException, match=r"`kk`.*[\s\S]*line 1 pos 7"):
        events(f"SELECT kk FROM STREAM ev GROUP BY k {END}")
    with pytest.raises(AnalysisException, match="nowhere"):
        events(f"INSERT INTO nowhere SELECT k FROM ev GROUP BY k {END}")


def test_a_fault_of_sparks_optimizer_is_refused_by_name(events: Workshop) -> None:
    """Spark 4.2's RewriteDistinctAggregates does not survive an ordered listagg(DISTINCT ..) beside another DISTINCT."""
    aggregates = "listagg(DISTINCT k) WITHIN GROUP (ORDER BY k) AS ks, sum(DISTINCT v + 1) AS total"
    query = f"SELECT k, {aggregates} FROM STREAM ev GROUP BY k {END}"
    with pytest.raises(PySparkException, match=r"Spark cannot plan the query before GLOBAL WINDOW END.*ClassCastException"):
        events(f"SELECT total FROM ({query})")


def test_explain_shows_graph_stages_and_sparks_plan(events: Workshop) -> None:
    text = events(f"EXPLAIN INSERT INTO dim SELECT k, count(*) FROM STREAM ev GROUP BY k {END}")[0].plan
    assert "Aggregate key: k; k, count(*) [is_output_idempotent, is_output_only_after_end_of_stream]" in text
    assert [word in text for word in ("Sink dim", "1: Source, Aggregate", "SortAggregate", "Exchange hashpartitioning")] == [
        True
    ] * 4


@pytest.mark.parametrize("how", ["property", "setting"])
def test_a_flow_in_batch_mode_ends(events: Workshop, how: str) -> None:
    """Its table is there and filled when the statement returns, and no flow is left."""
    properties = "TBLPROPERTIES ('execution.runtime-mode' = 'BATCH')" if how == "property" else ""
    if how == "setting":
        events("SET execution.runtime-mode = BATCH")
    try:
        events(f"CREATE STREAMING TABLE counts {properties} AS {COUNTS.format('STREAM ev')}")
        if how == "setting":
            events(
                "CREATE FLOW f AS INSERT INTO counts BY NAME SELECT 1L AS n, 'x' AS k, 1L AS total FROM STREAM dim GROUP BY ALL"
            )
    finally:
        events.spark.conf.unset("execution.runtime-mode")
    assert events("SHOW FLOWS") == []
    assert events.batch("SELECT * FROM counts WHERE k <> 'x' OR k IS NULL") == events.batch(COUNTS.format("ev"))
    assert events.batch("SELECT count(*) FROM counts WHERE k = 'x'") == [(int(how == "setting"),)]


def test_a_session_made_later_has_it_too(events: Workshop) -> None:
    other = events.spark.newSession()
    assert rows(other.sql(f"{COUNTS.format('ev')} {END}")) == events.batch(COUNTS.format("ev"))
    clone = jvm.clone_session(events.spark)
    assert rows(clone.sql(f"{COUNTS.format('ev')} {END}")) == events.batch(COUNTS.format("ev"))


@pytest.mark.parametrize(
    ("where", "args"),
    [("k = 'a:b?'", None), ("k = :key", {"key": "a:b?"}), ("k = ?", ["a:b?"])],
    ids=["a text with markers in it", "named", "positional"],
)
def test_parameters(sql: Workshop, where: str, args: Any) -> None:
    """Spark looks for markers by parsing the text, which has a clause that it does not know."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a:b?', 1), ('a:b?', 2), ('c', 3)")
    found = sql.spark.sql(
        f"SELECT k, sum(v) AS s FROM STREAM ev WHERE {where} GROUP BY k GLOBAL WINDOW END OF STREAM",
        **({} if args is None else {"args": args}),
    )
    assert [tuple(row) for row in found.collect()] == [("a:b?", 3)]


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("SELECT '${spark.app.name}|${no.such}', :a", {"a": "Dear ${spark.app.name}, ${hi}"}),
        ("SELECT '${spark.app.name}|${no.such}', ?", ["${env:HOME} ${ } $ {a}"]),
        ("SELECT '|', array(:a, 'x')", {"a": "${hi}"}),
    ],
)
def test_a_parameters_value_is_taken_as_it_is(sql: Workshop, text: str, args: Any) -> None:
    """Spark's parser puts in the values of its variables, `${..}`, before those of parameters."""
    value = next(iter(args.values())) if isinstance(args, dict) else args[0]
    name = sql.spark.sparkContext.appName if "spark.app.name}|" in text else ""
    found = sql.spark.sql(text, args=args).collect()
    assert [tuple(row) for row in found] == [(f"{name}|", [value, "x"] if "array" in text else value)]


def test_variables_that_spark_does_not_know_stay_beside_parameters(sql: Workshop) -> None:
    query = r"SELECT '${no:such}', r'${no:such}', '\${no:such}', {} AS `${no:such}`"
    found = sql.spark.sql(query.replace("{}", ":a"), args={"a": "${no:such}"})
    expected = sql.spark.sql(query.replace("{}", "'$' || '{no:such}'"))
    assert found.columns == expected.columns
    assert found.collect() == expected.collect()
    with pytest.raises(PySparkException, match="Syntax error at or near 'is'") as caught:
        sql.spark.sql("SELECT '${no:such}', :a FROM k WHERE v is", args={"a": 1})
    assert "\ufdd0" not in str(caught.value)


def test_parameters_of_ours_keep_what_looks_like_a_variable(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev SELECT '$' || '{x}', 1")
    query = "SELECT k, sum(v) AS s FROM STREAM ev WHERE k = :k GROUP BY k GLOBAL WINDOW END OF STREAM"
    assert [tuple(row) for row in sql.spark.sql(query, args={"k": "${x}"}).collect()] == [("${x}", 1)]


def test_the_head_of_an_insert_is_sparks(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1), ('a', 2), ('b', 4)")
    sql("CREATE TABLE t (from STRING, to BIGINT) USING delta")
    query = "SELECT k AS from, sum(v) AS to{} FROM STREAM ev GROUP BY k GLOBAL WINDOW END OF STREAM"
    sql(f"INSERT INTO t (from, to) {query.format('')}")
    sql(f"INSERT WITH SCHEMA EVOLUTION INTO t BY NAME {query.format(', max(v) AS most')}")
    sql(f"INSERT INTO t BY NAME REPLACE WHERE from IN ('b') AND to > 3 {query.replace('ev', 'ev WHERE v > 3').format('')}")
    assert sql.batch("SELECT * FROM t") == [("a", 3, 2), ("a", 3, None), ("b", 4, None)]


@pytest.mark.parametrize(
    "statement",
    [
        "EXECUTE IMMEDIATE 'SELECT ? + ?' USING 1, 2",
        "EXECUTE IMMEDIATE 'SELECT :a + :b' USING 1 AS a, 2 AS b",
        "EXECUTE IMMEDIATE 'SELECT 3'",
        "EXECUTE IMMEDIATE 'SELECT sum(v) AS s FROM STREAM ev WHERE v < ? GROUP BY ALL GLOBAL WINDOW END OF STREAM' USING 3",
        "EXECUTE IMMEDIATE 'SELECT sum(v) AS s FROM STREAM ev WHERE v < :m GLOBAL WINDOW END OF STREAM' USING 3 AS m",
    ],
)
def test_execute_immediate(sql: Workshop, statement: str) -> None:
    sql("CREATE TABLE ev (v INT) USING delta")
    sql("INSERT INTO ev VALUES (1), (2), (4)")
    assert [tuple(row) for row in sql.spark.sql(statement).collect()] == [(3,)]


SUBQUERIES = [
    "SELECT k, count(*) AS n FROM {ev} WHERE v > (SELECT avg(v) FROM {ev}) GROUP BY k",
    "SELECT k, (SELECT max(w) FROM {dim}) AS m, sum(v) + (SELECT count(*) FROM {dim} WHERE w > 5) AS s FROM {ev} GROUP BY k",
    "SELECT k, sum(v) AS s FROM {ev} WHERE k IN (SELECT k FROM {dim} WHERE w > 5) AND i NOT IN (SELECT w FROM {dim}) GROUP BY k",
    "SELECT count(*) AS n FROM {ev} AS e WHERE EXISTS (SELECT 1 FROM {dim} AS d WHERE d.k = e.k AND d.w > e.v)",
    "SELECT k, count(*) AS n FROM {ev} AS e WHERE v < (SELECT max(d.w) FROM {dim} AS d WHERE d.k = e.k) GROUP BY k",
    "SELECT e.k, x.m FROM (SELECT DISTINCT k FROM {ev}) AS e, LATERAL (SELECT max(w) AS m FROM {dim} AS d WHERE d.k = e.k) AS x",
]


@pytest.mark.parametrize("query", SUBQUERIES)
def test_streams_in_subqueries_are_read_to_their_ends(events: Workshop, query: str) -> None:
    for name in ("ev", "dim"):
        events.spark.readStream.table(name).createOrReplaceTempView(f"{name}_view")
    expected = rows(events.spark.sql(query.format(ev="ev", dim="dim")))
    assert expected
    for form in ("STREAM {}", "STREAM {}_view"):
        bounded = query.format(ev=form.format("ev"), dim=form.format("dim"))
        assert rows(events.spark.sql(f"{bounded} {END}")) == expected, bounded
