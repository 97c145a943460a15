"""Memory-only buffers: nothing is written between flushes, and what is lost with them comes back (FLIP-365)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqlext.execution.state import intake_buffer
from tests.integration.workshop import COUNTS, DEADLINE, Workshop
from tests.support import eventually, side_by_side

pytestmark = pytest.mark.usefixtures("lean")

MEMORY = (
    "'execution.flush.max-interval' = '10 minutes', "
    + "'execution.flush.memory-buffer-only' = 'true', 'state.backend.type' = 'rocksdb'"
)
QUERY = COUNTS.format("STREAM ev WITH ('maxFilesPerTrigger' = '1')")


def files(home: Path) -> list[Path]:
    """What a flow has written beside its checkpoint."""
    return [path for path in home.rglob("*") if path.is_file() and "checkpoint" not in path.relative_to(home).parts]


def test_buffers_without_files_and_flushes_once(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}) AS {QUERY}")
    sql.freeze()
    sql.take_in("t")
    before = files(sql.home("t"))
    for more in range(3):
        sql(f"INSERT INTO ev VALUES ('a', {more}), ('c', NULL)")
        sql.take_in("t")

    assert files(sql.home("t")) == before
    assert sql.commits("t") == []
    assert sql.shown("t").buffered > 0
    sql("FLUSH FLOW t")
    (commit,) = sql.commits("t")
    assert commit["reason"] == "command"
    assert commit["first_batch"] == 0
    assert sql.shown("t").buffered == 0
    assert sql.equals_batch()


def test_flushes_when_the_cache_is_full_of_distinct_groups(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}, 'state.backend.cache.max-entries-num' = '4') AS {QUERY}")
    sql.freeze()
    for more in range(4):  # always the same two groups
        sql(f"INSERT INTO ev VALUES ('a', {more}), (NULL, 1)")
        sql.take_in("t")
    assert sql.commits("t") == []

    sql("INSERT INTO ev VALUES ('c', 1), ('d', 1)")
    sql.take_in("t")
    eventually(lambda: [commit["reason"] for commit in sql.commits("t")] == ["cache full"], DEADLINE)
    eventually(sql.equals_batch, DEADLINE)

    sql("INSERT INTO ev SELECT CAST(id AS STRING), 1 FROM range(0, 9, 1, 1)")  # larger than the cache by itself
    sql.take_in("t")
    eventually(lambda: [commit["reason"] for commit in sql.commits("t")] == ["cache full"] * 2, DEADLINE)
    eventually(sql.equals_batch, DEADLINE)


def test_many_small_micro_batches_are_combined(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_buffer, "_MOST_BATCHES", 3)
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}) AS {COUNTS.format('STREAM ev')}")
    sql.freeze()
    held = []
    for more in range(5):
        sql(f"INSERT INTO ev VALUES ('a', {more}), ('new {more}', 1)")
        sql.take_in("t")
        held.append([batch.last - batch.first + 1 for batch in sql.flow("t")._intakes[0].buffer.batches])
    assert held == [[1], [1, 1], [3], [3, 1], [5]]
    assert sql.commits("t") == []
    sql("FLUSH FLOW t")
    assert [(commit["first_batch"], commit["last_batch"]) for commit in sql.commits("t")] == [(0, 4)]
    assert sql.equals_batch()


def test_what_a_crash_loses_comes_back(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}) AS {QUERY} HAVING sum(v) > 1")
    having = f"{COUNTS.format('ev')} HAVING sum(v) > 1"
    sql.freeze()
    sql.take_in("t")
    sql("FLUSH FLOW t")
    for crash in range(2):
        for more in range(2):
            sql(f"INSERT INTO ev VALUES ('a', {-more}), ('new {crash}', 7)")
            sql.take_in("t")
        sql.crash()

        assert sql.resume() == ["t"]
        assert sql.commits("t")[-1]["reason"] == "recovery"
        assert sql.commits("t")[-1]["first_batch"] == sql.commits("t")[-2]["last_batch"] + 1
        assert sql.batch("SELECT k, n, total FROM t") == sql.batch(having)
        sql.freeze()
    sql("INSERT INTO ev VALUES ('a', 30)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, n, total FROM t") == sql.batch(having)


def test_a_crash_while_it_comes_back_loses_nothing(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}) AS {QUERY}")
    sql.freeze()
    sql.take_in("t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql.take_in("t")
    home = sql.home("t")
    sql.crash()
    newest = max((home / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()  # the process before this one had got as far as that

    assert sql.resume() == ["t"]
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_a_clean_stop_loses_nothing_and_brings_nothing_back(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}) AS {QUERY} HAVING k <> 'none'")
    sql.freeze()
    sql.take_in("t")
    sql("STOP FLOW t")
    sql("START FLOW t")
    sql("INSERT INTO ev VALUES ('none', 1)")  # a micro-batch whose one group does not qualify
    sql("WAIT FLOW t")
    flushed = [commit["reason"] for commit in sql.commits("t")]
    sql("STOP FLOW t")
    sql("START FLOW t")

    assert "recovery" not in flushed
    assert [commit["reason"] for commit in sql.commits("t")] == flushed


def test_switching_between_memory_and_files_over_a_crash(sql: Workshop) -> None:
    sql.source()
    was_in_memory = {"to_files": True, "to_memory": False}
    option = "'execution.flush.memory-buffer-only' = '{}'"
    for table, before in was_in_memory.items():
        sql(
            f"CREATE STREAMING TABLE {table} TBLPROPERTIES ("
            "'state.backend.type' = 'rocksdb', 'execution.flush.max-interval' = '10 minutes', "
            f"{option.format(str(before).lower())}) AS {QUERY}"
        )
    sql.freeze()
    side_by_side(sql.take_in, was_in_memory)
    sql("INSERT INTO ev VALUES ('a', 10)")
    side_by_side(sql.take_in, was_in_memory)
    sql.crash()

    def switch(table: str) -> None:
        sql(f"ALTER FLOW {table} SET ({option.format(str(not was_in_memory[table]).lower())})")
        sql(f"START FLOW {table}")

    def equals_batch(table: str) -> None:
        sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT k, n, total FROM {table}") == sql.batch(COUNTS.format("ev"))

    side_by_side(switch, was_in_memory)
    sql("INSERT INTO ev VALUES ('a', 20)")
    side_by_side(equals_batch, was_in_memory)


def test_with_a_watermark_the_buffer_is_durable(sql: Workshop) -> None:
    sql("CREATE TABLE ticks (at TIMESTAMP, v INT) USING delta")
    sql("INSERT INTO ticks VALUES (TIMESTAMP'2024-01-01 00:00:01', 1), (TIMESTAMP'2024-01-01 01:00:00', 2)")
    query = (
        "SELECT window.start AS s, count(*) AS n FROM STREAM ticks WATERMARK at DELAY OF INTERVAL 1 MINUTE "
        "GROUP BY window(at, '5 minutes')"
    )
    (explained,) = sql(f"EXPLAIN CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}) AS {query}")
    assert "durable" in explained.plan
    assert "watermark" in explained.plan
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}) AS {query}")
    sql.freeze()
    sql.take_in("t")
    assert list((sql.home("t") / "buffer").glob("__sqlext_batch=*"))


def test_options_change_while_the_stream_goes_on(sql: Workshop) -> None:
    """Another interval and another size of the cache need no new start: the query's run stays the same."""
    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({MEMORY}) AS {QUERY}")
    query = sql.flow("t")._intakes[0].query
    assert query is not None
    run = query.runId
    sql("ALTER FLOW t SET ('execution.flush.max-interval' = '1 second', 'state.backend.cache.max-entries-num' = '7')")
    sql("INSERT INTO ev VALUES ('a', 30)")
    eventually(sql.equals_batch, DEADLINE)
    again = sql.flow("t")._intakes[0].query
    assert again is not None
    assert again.runId == run
    assert "7" in {row.value.split()[0] for row in sql("DESCRIBE FLOW t") if row.property.startswith("option state")}
