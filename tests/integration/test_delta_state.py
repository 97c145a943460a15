"""State in Delta tables: partial results are added up, once each, to what a batch query gives (`state.backend.type` = delta)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.coordination.fence import Fence
from sqlext.execution.delta import commit, compaction, target, transaction
from sqlext.execution.delta.transaction import TableTransaction
from sqlext.execution.flows.flush import FlushReason
from sqlext.execution.flows.table_writer import TableWriter
from sqlext.execution.state.delta_state import DeltaState, Show, StateFlush
from sqlext.execution.state.state_beside import StateBeside
from sqlext.spark.java import java_of
from tests.integration.workshop import COUNTS, DEADLINE, Workshop, are_contiguous, local
from tests.support import eventually, side_by_side

pytestmark = pytest.mark.usefixtures("lean")

DELTA = "TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes', 'state.backend.type' = 'delta')"
ONE_FILE = "STREAM ev WITH ('maxFilesPerTrigger' = '1')"
FUNCTIONS = {
    "numbers": "count(*), count(v), sum(v), sum(d), min(v), max(s), avg(v), avg(d), try_sum(v), try_avg(d), count_if(b), "
    "count_if(v > 3), bit_and(v), bit_or(v), bit_xor(v), bool_and(b), bool_or(b), min_by(s, v), max_by(s, v)",
    "statistics": "round(stddev(v), 6), round(stddev_pop(d), 6), round(var_samp(v), 6), round(var_pop(d), 6), "
    "round(skewness(v), 6), round(kurtosis(v), 6), round(corr(v, d), 6), round(covar_pop(v, d), 6), round(regr_slope(v, d), 6)",
    "filtered": "count(*) FILTER (WHERE b), sum(v) FILTER (WHERE v > 5), avg(d) FILTER (WHERE s > '3'), "
    "array_sort(collect_set(s) FILTER (WHERE b)), max_by(s, v) FILTER (WHERE NOT b)",
    "values": "array_sort(collect_list(v)), array_sort(collect_set(s)), listagg(s, '-') WITHIN GROUP (ORDER BY s), mode(s), "
    "median(v), percentile(v, array(0.1, 0.9)), max(struct(v, s)), sum0(v)",
    "distinct": "count(DISTINCT s), sum(DISTINCT v), count(DISTINCT v, s), avg(DISTINCT d)",
    "sketches": "approx_count_distinct(v), hll_sketch_estimate(hll_sketch_agg(v)), theta_sketch_estimate(theta_sketch_agg(v)), "
    "kll_sketch_get_quantile_bigint(kll_sketch_agg_bigint(coalesce(v, 0)), 0.5D), percentile_approx(v, 0.5)",
}
DATA = (
    "SELECT CAST(id % 5 AS STRING) AS k, id AS v, CAST(id / 3 AS DECIMAL(10, 2)) AS d, CAST(id % 7 AS STRING) AS s, "
    "id % 2 = 0 AS b FROM range({}, {}, 1, 1) UNION ALL SELECT NULL, NULL, NULL, NULL, NULL"
)


def state(sql: Workshop, flow: str = "t") -> str:
    return next(str(row.value) for row in sql(f"DESCRIBE FLOW {flow}") if row.property == "state")


@pytest.mark.usefixtures("unhurried")
def test_functions(sql: Workshop) -> None:
    """Over three micro-batches and two flushes, what a batch query gives of the same rows."""
    queries = {group: f"SELECT k, {_columns(calls)} FROM {{}} GROUP BY k" for group, calls in FUNCTIONS.items()}
    flows = [f"{group}_{backend}" for group in queries for backend in ("delta", "rocksdb")]
    sql(f"CREATE TABLE ev USING delta AS {DATA.format(0, 40)}")

    def create(flow: str) -> None:
        group, backend = flow.split("_")
        properties = DELTA.replace("'delta'", f"'{backend}'")
        sql(f"CREATE STREAMING TABLE {flow} {properties} AS {queries[group].format(ONE_FILE)}")

    def flush(flow: str) -> None:
        sql(f"WAIT FLOW {flow}")

    def equals_batch(flow: str) -> None:
        flush(flow)
        group, backend = flow.split("_")
        assert sql.batch(f"SELECT * FROM {flow}") == expected[group]
        assert state(sql, flow).startswith(backend)
        assert are_contiguous(sql.commits(flow))

    side_by_side(create, flows)
    side_by_side(flush, flows)
    sql(f"INSERT INTO ev {DATA.format(30, 60)}")
    sql(f"INSERT INTO ev {DATA.format(60, 80)}")
    expected = {
        group: sql.batch(query.format("ev").replace("sum0(v)", "coalesce(sum(v), 0)")) for group, query in queries.items()
    }
    side_by_side(equals_batch, flows)


def _columns(calls: str) -> str:
    return ", ".join(f"{call} AS c{at}" for at, call in enumerate(_calls(calls)))


def _calls(text: str) -> list[str]:
    """Cut a list at its outermost commas."""
    calls, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            calls.append("")
        else:
            calls[-1] += character
    return calls


def test_files_that_cannot_be_read_are_an_error_whatever_the_user_lets_be_left_out(sql: Workshop) -> None:
    """A group that was left out of what a flush reads would be gone for good."""
    sql("SET spark.sql.files.ignoreCorruptFiles = true")
    sql("SET spark.sql.files.ignoreMissingFiles = true")
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    file = local(sql("SELECT input_file_name() AS name FROM t WHERE k = 'a'")[0].name)
    written = file.read_bytes()
    file.write_bytes(b"damaged")
    sql("START FLOW t")
    sql("INSERT INTO ev VALUES ('new', 7)")
    with pytest.raises(PySparkException, match="Flow `t` has failed"):
        sql("WAIT FLOW t")
    sql("STOP FLOW t")
    file.write_bytes(written)
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_what_the_user_lets_be_left_out_is_left_out_of_tables_that_the_query_above_reads(sql: Workshop) -> None:
    sql("SET spark.sql.files.ignoreCorruptFiles = true")
    sql.source()
    sql("CREATE TABLE names (k STRING, name STRING) USING delta")
    sql("INSERT INTO names VALUES ('a', 'Ann')")
    (file,) = local(sql("DESCRIBE DETAIL names")[0].location).glob("*.parquet")
    sql("INSERT INTO names VALUES ('b', 'Bob')")
    file.write_bytes(b"damaged")
    counts = COUNTS.format("STREAM ev")
    sql(f"CREATE STREAMING TABLE t {DELTA} AS SELECT c.k, c.n, names.name FROM ({counts}) c JOIN names ON c.k = names.k")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("b", 1, "Bob")]
    sql("INSERT INTO ev VALUES ('b', 7)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("b", 2, "Bob")]


def test_the_table_itself_is_the_state(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {COUNTS.format(ONE_FILE)}")
    sql("WAIT FLOW t")
    for more in range(2):
        sql(f"INSERT INTO ev VALUES ('a', {more}), ('new {more}', 7)")
        sql("WAIT FLOW t")
    assert sql.equals_batch()
    assert state(sql).endswith("so the table holds its state")
    assert sql.spark.table("t").columns == ["k", "n", "total"]
    assert not (sql.home("t") / "state").exists()
    assert not list((sql.home("t") / "checkpoint").glob("state"))
    assert are_contiguous(sql.commits("t"))
    assert len(sql.commits("t")) == 3


def test_a_table_whose_change_feed_is_read_is_merged_into(sql: Workshop) -> None:
    columns = {
        "added": "count(*) AS n, count(v) AS c, sum(v) AS total, min(v) AS least, max(v) AS most, bit_and(v) AS x, "
        "bit_or(v) AS y, bit_xor(v) AS z, bool_and(v > 1) AS every, bool_or(v > 1) AS one",
        "twice": "count(*) AS n, count(*) AS again, 'x' AS mark",
        "own": "any_value(k) AS same, count(*) AS n",
    }
    queries = {flow: f"SELECT k, {listed} FROM {{}} GROUP BY k" for flow, listed in columns.items()}
    sql.source()
    for flow, query in queries.items():
        properties = f"{DELTA[:-1]}, 'delta.enableChangeDataFeed' = 'true')"
        sql(f"CREATE STREAMING TABLE {flow} {properties} AS {query.format(ONE_FILE)}")

    def flush(flow: str) -> None:
        sql(f"WAIT FLOW {flow}")

    def equals_batch(flow: str) -> None:
        flush(flow)
        assert sql.batch(f"SELECT * FROM {flow}") == sql.batch(queries[flow].format("ev"))
        changes = sql(
            f"SELECT k, n FROM table_changes('{flow}', 1) WHERE _change_type <> 'update_preimage' ORDER BY _commit_version"
        )
        assert [row.n for row in changes if row.k == "a"] == [1, 2, 4, 5]
        assert [row.n for row in changes if row.k == "b"] == [1]

    for values in ("('a', NULL), ('new', NULL)", "('a', 7), ('a', 4)", "('new', 2), ('a', -5)"):
        side_by_side(flush, queries)
        sql(f"INSERT INTO ev VALUES {values}")
    side_by_side(equals_batch, queries)


def test_values_stay_in_the_order_of_their_arrival(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    query = f"SELECT k, first(v) AS f, last(v) AS l, collect_list(v) AS c FROM {ONE_FILE} GROUP BY k"
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query}")
    sql("CREATE STREAMING TABLE one TBLPROPERTIES ('state.backend.type' = 'delta') AS SELECT collect_list(v) AS c FROM STREAM ev")
    for values in ((5, 3), (9,), (1, 7)):
        listed = ", ".join(f"('a', {value})" for value in values)
        sql(f"INSERT INTO ev SELECT /*+ COALESCE(1) */ * FROM VALUES {listed}")  # files of one commit have no order
        sql.take_in("t")
        if values == (5, 3):
            sql("FLUSH FLOW t")
        sql("WAIT FLOW one")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 5, 7, [5, 3, 9, 1, 7])]
    assert sql.batch("SELECT * FROM one") == [([5, 3, 9, 1, 7],)]


def test_groups_that_do_not_qualify_keep_their_state(sql: Workshop) -> None:
    query = COUNTS + " HAVING count(*) BETWEEN 2 AND 3"
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query.format(ONE_FILE)}")
    for _ in range(4):
        sql("WAIT FLOW t")
        assert sql.batch("SELECT k, n, total FROM t") == sql.batch(query.format("ev"))
        sql("INSERT INTO ev VALUES ('a', 1)")
    assert state(sql).endswith("since the table does not have all groups")


def test_above_an_aggregate(sql: Workshop) -> None:
    query = "SELECT k, n FROM (SELECT k, count(*) AS n, avg(v) AS a FROM {} GROUP BY k) ORDER BY n DESC, k LIMIT 2"
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query.format(ONE_FILE)}")
    sql("INSERT INTO ev VALUES ('b', 1), ('c', 1), ('c', 2)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))


def test_a_table_with_rows_of_others_is_no_state(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE TABLE t (k STRING, n BIGINT, total BIGINT) USING delta {DELTA}")
    sql("INSERT INTO t VALUES ('a', 100, 100), ('other', 1, 1)")
    sql(f"CREATE FLOW t AS INSERT INTO t {COUNTS.format(ONE_FILE)}")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 5)")
    sql("WAIT FLOW t")
    assert set(sql.batch("SELECT * FROM t")) == {(None, 1, 3), ("a", 2, 6), ("b", 1, 2), ("other", 1, 1)}
    assert state(sql).endswith("since others may write the table")


# Crashes.


def test_a_state_whose_last_commit_was_torn(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log has a checkpoint and no checksum, and the first to read it is the flush of what a crash left."""
    monkeypatch.setitem(target._HIDDEN, "delta.checkpointInterval", "10")
    query = COUNTS.replace("sum(v)", "avg(v)")
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query.format('STREAM ev')}")
    for at in range(11):
        sql(f"INSERT INTO ev VALUES ('a', {at})")
        sql.take_in("t")
        sql("FLUSH FLOW t")
    sql("INSERT INTO ev VALUES ('b', 7)")
    sql.take_in("t")
    log = sql.home("t") / "state" / "_delta_log"
    sql.crash()
    assert (log / "_last_checkpoint").exists()
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    java_of(sql.spark).org.apache.spark.sql.delta.DeltaLog.clearCache()
    sql.resume()
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, n, total FROM t") == sql.batch(query.format("ev"))


def test_resumes_what_a_crash_left(sql: Workshop) -> None:
    queries = {"in_table": COUNTS, "own": COUNTS.replace("sum(v)", "avg(v)")}
    sql.source()
    for flow, query in queries.items():
        sql(f"CREATE STREAMING TABLE {flow} {DELTA} AS {query.format(ONE_FILE)}")
    sql.freeze()
    for flow in queries:
        sql.take_in(flow)
        sql(f"FLUSH FLOW {flow}")
    sql("INSERT INTO ev VALUES ('a', 10), ('c', 1)")
    for flow in queries:
        sql.take_in(flow)
    sql.crash()
    assert sorted(sql.resume()) == sorted(queries)
    for flow, query in queries.items():
        assert [commit["reason"] for commit in sql.commits(flow)] == ["command", "recovery"]
        assert sql.batch(f"SELECT * FROM {flow}") == sql.batch(query.format("ev"))


def test_a_crash_between_the_two_commits_of_a_flush(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    query = COUNTS.replace("sum(v)", "avg(v)")
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query.format(ONE_FILE)}")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10), ('c', 1)")

    def dies(*_: object, **__: object) -> None:
        raise OSError("died here")

    with monkeypatch.context() as patched:
        patched.setattr(TableWriter, "_merge_rows", dies)
        with pytest.raises(PySparkException, match="died here"):
            sql("WAIT FLOW t")
    assert len(sql.commits("t")) == 1
    sql.crash()
    sql("INSERT INTO ev VALUES ('b', 4), ('c', 9)")  # to be flushed beside what was stored already
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))
    assert are_contiguous(sql.commits("t"))


def other_driver_before(monkeypatch: pytest.MonkeyPatch, kind: type[DeltaState]) -> list[object]:
    """Let another driver's flush of the same micro-batches land right before one begins its transaction on the state, once."""
    begin, flush, shown, landed = kind._begin, kind.flush, list[Show](), list[object]()

    def flush_noted(state: DeltaState, what: StateFlush, show: Show) -> None:
        shown.append(show)
        flush(state, what, show)

    def begin_after(state: DeltaState, what: StateFlush) -> TableTransaction | None:
        if not landed:
            landed.append(state)
            flush(kind(state._spark, state._stream, state.location, state._spec, state._epoch), what, shown[-1])
        return begin(state, what)

    monkeypatch.setattr(kind, "flush", flush_noted)
    monkeypatch.setattr(kind, "_begin", begin_after)
    return landed


def test_what_another_driver_has_just_stored_is_not_added_again(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    query = COUNTS.replace("sum(v)", "avg(v)")
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query.format(ONE_FILE)}")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10), ('c', 1)")
    landed = other_driver_before(monkeypatch, StateBeside)
    sql("WAIT FLOW t")
    assert landed
    sql("INSERT INTO ev VALUES ('a', 100), ('c', 2)")  # shows what is stored
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))


def test_a_driver_that_has_lost_the_flow_in_the_middle_stores_nothing(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {COUNTS.replace('sum(v)', 'avg(v)').format(ONE_FILE)}")
    sql("WAIT FLOW t")
    state_table, flow = f"delta.`{sql.home('t') / 'state'}`", sql.flow("t")
    before, begin = len(sql(f"DESCRIBE HISTORY {state_table}")), StateBeside._begin

    def begin_and_lose(state: StateBeside, what: StateFlush) -> TableTransaction | None:
        found = begin(state, what)
        Fence(flow._home, "flow `t`", flow.epoch + 1).take()
        return found

    monkeypatch.setattr(StateBeside, "_begin", begin_and_lose)
    sql("INSERT INTO ev VALUES ('a', 10)")
    with pytest.raises(PySparkException, match="taken over"):
        sql("WAIT FLOW t")
    assert len(sql(f"DESCRIBE HISTORY {state_table}")) == before


def test_a_large_table_is_changed_row_by_row(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows marked in files that have marks already, whole files gone, new keys, and a table that others compact meanwhile."""
    monkeypatch.setattr(commit, "SMALL_TABLE_BYTES", 0)
    queries = {
        flow: f"SELECT {keys}, count(*) AS n, sum(v) AS total, max(s) AS most FROM {{}} GROUP BY {keys}"
        for flow, keys in {"one": "k", "two": "k, d"}.items()
    }
    sql(f"CREATE TABLE ev USING delta AS {DATA.format(0, 400)}")

    def create(flow: str) -> None:
        sql(f"CREATE STREAMING TABLE {flow} {DELTA} AS {queries[flow].format(ONE_FILE)}")
        sql(f"WAIT FLOW {flow}")

    def equals_batch(flow: str) -> None:
        sql(f"WAIT FLOW {flow}")
        assert sql.batch(f"SELECT * FROM {flow}") == sql.batch(queries[flow].format("ev"))

    side_by_side(create, queries)
    for first, last in ((390, 420), (0, 3), (0, 3), (0, 400)):
        sql(f"INSERT INTO ev {DATA.format(first, last)}")
        side_by_side(equals_batch, queries)
    for flow in queries:
        assert operations(sql, flow) == ["WRITE", *["MERGE"] * 4]
        sql(f"OPTIMIZE {flow}")
    sql(f"INSERT INTO ev {DATA.format(7, 9)}")
    side_by_side(equals_batch, queries)
    for flow in queries:
        assert len(sql.commits(flow)) == 6
        assert are_contiguous(sql.commits(flow))


@pytest.mark.parametrize("is_small", [True, False])
def test_a_state_of_its_own_is_one_transaction(sql: Workshop, monkeypatch: pytest.MonkeyPatch, is_small: bool) -> None:
    """Written anew as a whole, or row by row; of groups that come again in the flush that a crash left, both tables are right."""
    monkeypatch.setattr(commit, "SMALL_TABLE_BYTES", 16 * 1024**2 if is_small else 0)
    query = "SELECT k, avg(v) AS mean, collect_list(v) AS list FROM {} GROUP BY k"
    sql(f"CREATE TABLE ev USING delta AS {DATA.format(0, 400)}")
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query.format(ONE_FILE)}")
    sql("WAIT FLOW t")
    for first, last in ((390, 420), (0, 3), (0, 400)):
        sql(f"INSERT INTO ev {DATA.format(first, last)}")
        sql("WAIT FLOW t")
        in_any_order = query.replace("collect_list(v)", "array_sort(collect_list(v))").format("ev")
        assert sql.batch("SELECT k, mean, array_sort(list) FROM t") == sql.batch(in_any_order)
    state_table = f"delta.`{sql.home('t') / 'state'}`"
    assert operations(sql, state_table) == ["WRITE", *["WRITE" if is_small else "MERGE"] * 3]
    assert are_contiguous(sql.commits("t"))


def test_files_of_a_hidden_state_do_not_pile_up(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_FLUSHES_BETWEEN_VACUUMS", 3)
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {COUNTS.format(ONE_FILE).replace('sum(v)', 'avg(v)')}")
    state_home = sql.home("t") / "state"
    sql(f"ALTER TABLE delta.`{state_home}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 hours')")
    for number in range(6):
        sql(f"INSERT INTO ev VALUES ('a', {number})")
        sql("WAIT FLOW t")
    flusher = sql.flow("t")._flusher
    assert flusher.wait(flusher.ask(FlushReason.COMMAND), DEADLINE)  # after what follows the last flush
    assert len(list(state_home.glob("*.parquet"))) <= 4
    assert sql.batch("SELECT k, total FROM t") == sql.batch("SELECT k, avg(v) FROM ev GROUP BY k")


def operations(sql: Workshop, table: str = "t") -> list[str]:
    """What others read of a table's newest commits, oldest first, but for its making."""
    return [row.operation for row in reversed(sql(f"DESCRIBE HISTORY {table}")) if "CREATE" not in row.operation]


# Others.


def test_a_change_by_somebody_else_is_told(sql: Workshop) -> None:
    changes = {
        "updated": "UPDATE updated SET n = n + 1",
        "deleted": "DELETE FROM deleted WHERE k = 'a'",
        "restored": "RESTORE TABLE restored VERSION AS OF 0",
    }
    sql.source()

    def create(flow: str) -> None:
        sql(f"CREATE OR REPLACE STREAMING TABLE {flow} {DELTA} AS {COUNTS.format(ONE_FILE)}")
        sql(f"WAIT FLOW {flow}")

    def is_told(flow: str) -> None:
        with pytest.raises(PySparkException, match=rf"Version 2 of the table in .* \({changes[flow].split()[0]}\) changed rows"):
            sql(f"WAIT FLOW {flow}")
        assert "REFRESH STREAMING TABLE .. FULL" in sql.shown(flow).error
        create(flow)
        assert sql.equals_batch(flow)

    side_by_side(create, changes)
    for statement in changes.values():
        sql(statement)
    sql("INSERT INTO ev VALUES ('a', 10)")
    side_by_side(is_told, changes)


@pytest.mark.parametrize("statement", ["OPTIMIZE t", "DELETE FROM t WHERE k = 'a'"])
def test_a_write_in_the_middle_of_a_flush(sql: Workshop, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {COUNTS.format(ONE_FILE)}")
    for more in range(2):
        sql(f"INSERT INTO ev SELECT CAST(id AS STRING), {more} FROM range(9)")
        sql("WAIT FLOW t")
    to_do, commit = [statement], transaction.commit_actions

    def commit_after(*arguments: Any, **named: Any) -> int:
        if to_do:
            sql(to_do.pop())
        return commit(*arguments, **named)

    monkeypatch.setattr(transaction, "commit_actions", commit_after)
    sql("INSERT INTO ev VALUES ('a', 10)")
    if statement.startswith("OPTIMIZE"):
        sql("WAIT FLOW t")
        assert sql.equals_batch()
    else:
        with pytest.raises(PySparkException, match=r"\(DELETE\) changed rows"):
            sql("WAIT FLOW t")
    assert to_do == []


def test_a_rewrite_by_somebody_else_is_fine(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {COUNTS.format(ONE_FILE)}")
    for more in range(3):
        sql(f"INSERT INTO ev VALUES ('a', {more}), ('b', {more})")
        sql("WAIT FLOW t")
    sql("OPTIMIZE t")
    sql("ALTER TABLE t SET TBLPROPERTIES ('comment' = 'ours')")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_a_table_that_is_the_state_may_get_wider_types(sql: Workshop) -> None:
    sql("CREATE TABLE numbers (k INT, v INT) USING delta")
    sql("INSERT INTO numbers VALUES (1, 5)")
    query = "SELECT k, count(*) AS n, sum(v) AS total FROM {} GROUP BY k"
    properties = {"rewritten": "", "merged": ", 'delta.enableChangeDataFeed' = 'true'"}

    def widen(table: str) -> None:
        widening = f"TBLPROPERTIES ('delta.enableTypeWidening' = 'true'{properties[table]})"
        sql(f"CREATE STREAMING TABLE {table} {widening} AS {query.format('STREAM numbers')}")
        sql(f"WAIT FLOW {table}")
        sql(f"ALTER TABLE {table} ALTER COLUMN k TYPE DOUBLE")
        sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE DECIMAL(20, 0)")

    side_by_side(widen, properties)
    for _ in range(2):
        sql("INSERT INTO numbers VALUES (1, 6), (2, 7)")
        for table in properties:
            sql(f"WAIT FLOW {table}")
            assert sql.batch(f"SELECT * FROM {table}") == sql.batch(query.format("numbers")), table
    assert sql.batch("SELECT * FROM rewritten") == [(1.0, 3, 17), (2.0, 2, 14)]
    more = query.replace("sum(v) AS total", "sum(v) AS total, max(v) AS most").format("STREAM numbers")
    sql(f"CREATE OR REFRESH STREAMING TABLE rewritten AS {more}")
    sql("WAIT FLOW rewritten")
    assert sql.batch("SELECT k, n, total, most FROM rewritten") == [(1.0, 3, 17, 6), (2.0, 2, 14, 7)]


def test_a_flow_keeps_its_state_where_it_is(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {COUNTS.format(ONE_FILE)}")
    with pytest.raises(PySparkException, match="CREATE OR REPLACE"):
        sql("ALTER FLOW t SET ('state.backend.type' = 'rocksdb')")
    sql("SET `spark.sqlext.state.backend.type` = rocksdb")
    sql("STOP FLOW t")
    sql("START FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    assert state(sql).startswith("delta")
    sql(f"CREATE OR REPLACE STREAMING TABLE t AS {COUNTS.format(ONE_FILE)}")
    sql("WAIT FLOW t")
    assert state(sql) == "rocksdb: state.backend.type is rocksdb."
    assert sql.equals_batch()


def test_what_cannot_be_split_stays_in_rocksdb(sql: Workshop) -> None:
    sql("CREATE TABLE ticks (at TIMESTAMP, v INT) USING delta")
    sql("CREATE TABLE few USING delta AS SELECT 7 AS v")
    query = "SELECT at, sum(v * (SELECT max(v) FROM few)) AS total FROM STREAM ticks GROUP BY at"
    reason = "it contains a subquery, which would be evaluated again for each step"
    (explained,) = sql(f"EXPLAIN CREATE STREAMING TABLE t AS {query}")
    assert f"aggregate: rocksdb: {reason}." in explained.plan
    because = f"a Delta table cannot hold the state of this query's aggregate: {reason}"
    for statement in ("EXPLAIN CREATE", "CREATE"):
        with pytest.raises(PySparkException, match=f"`state.backend.type` is delta, and {because}"):
            sql(f"{statement} STREAMING TABLE t {DELTA} AS {query}")
    assert not sql.spark.catalog.tableExists("t")
    (answer,) = sql(f"CREATE STREAMING TABLE t AS {query}")
    assert answer[0].endswith(f"; its state lives in RocksDB: {reason}")
    assert sql.shown("t").note == f"state in RocksDB: {reason}"
    assert state(sql) == f"rocksdb: {reason}."
    with pytest.raises(PySparkException, match=f"`state.backend.type` is delta, and {because}"):  # and what is there stays
        sql(f"CREATE OR REFRESH STREAMING TABLE t {DELTA} AS {query}")
    assert sql.shown("t").status == "RUNNING"
    (answer,) = sql(
        "CREATE STREAMING TABLE asked TBLPROPERTIES ('state.backend.type' = 'rocksdb') AS "
        "SELECT v, count(*) AS n FROM STREAM ticks GROUP BY v"
    )
    assert "RocksDB" not in answer[0]
    assert sql.shown("asked").note is None
    (explained,) = sql(f"EXPLAIN CREATE STREAMING TABLE u {DELTA} AS SELECT v, count(*) AS n FROM STREAM ticks GROUP BY v")
    assert "aggregate: delta: the aggregate can be continued from its results" in explained.plan


def test_flushes_at_its_interval(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA.replace('10 minutes', '1 second')} AS {COUNTS.format(ONE_FILE)}")
    eventually(sql.equals_batch, DEADLINE)
    sql("INSERT INTO ev VALUES ('a', 30)")
    eventually(sql.equals_batch, DEADLINE)
