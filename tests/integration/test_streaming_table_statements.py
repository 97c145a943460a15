"""Streaming tables as things of their own: column lists, keys, comments, ALTER, DROP; names of streams, paths, QUALIFY."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import COUNTS, Workshop
from tests.support import eventually, side_by_side

pytestmark = pytest.mark.usefixtures("lean")

DEADLINE = 180.0
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM STREAM ev GROUP BY k"


def columns(sql: Workshop, table: str) -> list[tuple[str, str, str | None]]:
    """Name, type and comment of each."""
    return [tuple(row) for row in sql(f"DESCRIBE TABLE {table}") if row.col_name and row.col_name[0] != "#"]


def properties(sql: Workshop, table: str) -> dict[str, str]:
    return {row.key: row.value for row in sql(f"SHOW TBLPROPERTIES {table}")}


# Column lists.


def test_a_column_list_names_types_and_describes_the_query_s_columns(sql: Workshop) -> None:
    sql.source()
    backends = ("rocksdb", "delta")
    listed = "the_key STRING COMMENT 'it\\'s k', many DECIMAL(20, 0) NOT NULL, total COMMENT 'of v'"
    described = [("the_key", "string", "it's k"), ("many", "decimal(20,0)", None), ("total", "bigint", "of v")]

    def is_described(backend: str) -> None:
        backed = f"TBLPROPERTIES ('state.backend.type' = '{backend}')"
        sql(f"CREATE STREAMING TABLE {backend} ({listed}) {backed} AS {SUMS}")
        assert columns(sql, backend) == described

    def equals_batch(backend: str) -> None:
        sql(f"WAIT FLOW {backend}")
        found = sql.batch(f"SELECT the_key, CAST(many AS BIGINT), total FROM {backend}")
        assert found == sql.batch(COUNTS.format("ev"))

    side_by_side(is_described, backends)
    side_by_side(equals_batch, backends)
    sql("INSERT INTO ev VALUES ('a', 7), ('c', 8)")
    side_by_side(equals_batch, backends)


def test_a_column_list_above_an_aggregate_and_of_rows_that_are_appended(sql: Workshop) -> None:
    sql.source()
    ranks = "SELECT k, rank() OVER (ORDER BY sum(v) DESC) AS place FROM {} GROUP BY k"
    sql(f"CREATE STREAMING TABLE top (key, r INT) AS {ranks.format('STREAM ev')}")
    sql("CREATE STREAMING TABLE twice (key, doubled BIGINT) AS SELECT k, 2 * v FROM STREAM ev")
    sql("WAIT FLOW top")
    sql("WAIT FLOW twice")
    assert sql.batch("SELECT key, r FROM top") == sql.batch(ranks.format("ev"))
    assert sql.batch("SELECT key, doubled FROM twice") == sql.batch("SELECT k, CAST(2 * v AS BIGINT) FROM ev")


def test_not_null_is_enforced(sql: Workshop) -> None:
    sql.source()  # has a NULL key
    sql("CREATE STREAMING TABLE t (k NOT NULL, v) AS SELECT k, v FROM STREAM ev")
    eventually(lambda: sql.shown("t").status == "FAILED", DEADLINE, lambda: str(sql.shown("t")))
    assert "NOT NULL" in sql.shown("t").error
    assert sql.batch("SELECT * FROM t") == []


def test_keys_are_kept_as_information(sql: Workshop) -> None:
    sql.source()
    sql(
        f"CREATE STREAMING TABLE t (k, n, total, CONSTRAINT pk PRIMARY KEY (k) RELY, FOREIGN KEY (k) REFERENCES o (id)) AS {SUMS}"
    )
    kept = {key: value for key, value in properties(sql, "t").items() if key.startswith("sqlext.constraint.")}
    assert kept == {
        "sqlext.constraint.pk": "PRIMARY KEY (k) RELY",
        "sqlext.constraint.foreign_key_2": "FOREIGN KEY (k) REFERENCES o (id)",
    }


UNSAYABLE = [
    ("k, n", r"The column list has 2 columns \(k, n\), but the query has 3 \(k, n, total\)\."),
    ("k, n STRUCT<a: INT>, total", r"The column `n` of the query is BIGINT, but `n` of the column list is STRUCT<a: INT>\."),
    ("k INT, n, total", "The column `k` of the query is STRING, but `k` of the column list is INT"),
    ("k CHAR(3), n, total", "several groups would become one row"),
    ("k, n, total, CONSTRAINT some CHECK (n > 0)", "The constraint `some` is CHECK"),
    ("k, n DEFAULT 3, total", "Expected NOT NULL or COMMENT"),
    ("k, n, total, PRIMARY KEY (nothing)", "There is no column `nothing`"),
    ("k, n, total, PRIMARY KEY (k) ENFORCED", "cannot be ENFORCED"),
    ("k, n, K", "The column `K` is given twice"),
]


def test_what_a_column_list_cannot_say_is_refused_and_nothing_is_made(sql: Workshop) -> None:
    sql.source()

    def is_refused(case: tuple[str, str]) -> None:
        listed, message = case
        with pytest.raises(PySparkException, match=message):
            sql(f"CREATE STREAMING TABLE t ({listed}) AS {SUMS}")
        assert not sql.spark.catalog.tableExists("t")
        assert sql("SHOW FLOWS") == []

    side_by_side(is_refused, UNSAYABLE)


def test_a_key_goes_into_no_type_that_makes_one_value_of_several(sql: Workshop) -> None:
    sql("CREATE TABLE events (id BIGINT, at TIMESTAMP) USING delta")
    sql("CREATE TABLE ids (id DOUBLE, n BIGINT) USING delta")
    sql("CREATE TABLE wider (id DECIMAL(20, 0), n BIGINT) USING delta")
    ids = "SELECT id, count(*) AS n FROM STREAM events GROUP BY id"
    with pytest.raises(PySparkException, match=r"`id` of the query is BIGINT, .* is DOUBLE: several groups would become one row"):
        sql(f"CREATE FLOW f AS INSERT INTO ids {ids}")
    hours = "SELECT date_trunc('HOUR', at) AS h, count(*) AS n FROM STREAM events GROUP BY 1"
    with pytest.raises(PySparkException, match=r"`h` of the query is TIMESTAMP_LTZ, .* is TIMESTAMP_NTZ: several groups"):
        sql(f"CREATE STREAMING TABLE hours (h TIMESTAMP_NTZ, n BIGINT) AS {hours}")
    sql(f"EXPLAIN CREATE FLOW f AS INSERT INTO wider {ids}")
    assert sql("SHOW FLOWS") == []


# ALTER and DROP.


def test_alter_changes_options_of_the_flow_and_properties_of_the_table(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {SUMS}")
    sql("ALTER STREAMING TABLE t SET TBLPROPERTIES ('execution.flush.max-interval' = '3 min', 'team' = 'web')")
    options = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert options["option execution.flush.max-interval"].startswith("3 min")
    assert properties(sql, "t")["team"] == "web"
    sql("ALTER STREAMING TABLE t ALTER COLUMN n COMMENT 'how many'")
    assert ("n", "bigint", "how many") in columns(sql, "t")
    sql("ALTER STREAMING TABLE t UNSET TBLPROPERTIES ('team')")
    assert "team" not in properties(sql, "t")
    sql("INSERT INTO ev VALUES ('z', 1)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_alter_refuses_what_comes_from_the_query_and_what_is_no_streaming_table(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {SUMS}")
    for change in ("ADD COLUMN x INT", "RENAME TO u", "ALTER COLUMN n TYPE STRING", "SET LOCATION '/tmp/x'"):
        with pytest.raises(PySparkException, match="Expected "):
            sql(f"ALTER STREAMING TABLE t {change}")
    with pytest.raises(PySparkException, match="2 ages"):
        sql("ALTER STREAMING TABLE t SET TBLPROPERTIES ('execution.flush.max-interval' = '2 ages')")
    with pytest.raises(PySparkException, match=r"spark_catalog\.default\.ev is no streaming table"):
        sql("ALTER STREAMING TABLE ev SET TBLPROPERTIES ('a' = 'b')")
    with pytest.raises(PySparkException, match=r"There is no streaming table spark_catalog\.default\.nothing"):
        sql("ALTER STREAMING TABLE nothing SET TBLPROPERTIES ('a' = 'b')")


def test_drop_takes_the_flow_and_the_table(sql: Workshop) -> None:
    sql.source()
    sql("CREATE SCHEMA other")
    sql(f"CREATE STREAMING TABLE other.t AS {SUMS}")
    sql("USE other")
    sql("DROP STREAMING TABLE T")
    assert sql("SHOW FLOWS") == []
    assert not sql.spark.catalog.tableExists("other.t")
    assert sql("DROP STREAMING TABLE IF EXISTS t")[0][0] == "there is no streaming table spark_catalog.other.t"
    with pytest.raises(PySparkException, match=r"There is no streaming table spark_catalog\.other\.t"):
        sql("DROP STREAMING TABLE t")


def test_drop_takes_a_table_whose_flow_is_gone_and_no_other_table(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {SUMS}")
    sql("DROP FLOW t")
    sql("DROP STREAMING TABLE t")
    assert not sql.spark.catalog.tableExists("t")
    sql("CREATE TABLE fed (k STRING, v INT) USING delta")
    sql("CREATE FLOW f AS INSERT INTO fed SELECT * FROM STREAM ev")
    with pytest.raises(PySparkException, match=r"spark_catalog\.default\.fed is no streaming table"):
        sql("DROP STREAMING TABLE fed")
    assert [row.name for row in sql("SHOW FLOWS")] == ["f"]


def test_a_table_in_the_place_of_the_flow_s_is_nobody_s_to_drop_or_alter(sql: Workshop) -> None:
    sql.source()
    formats = ("delta", "parquet")
    create = "CREATE OR REFRESH STREAMING TABLE of_{} AS " + SUMS
    for using in formats:
        sql(create.format(using))
    for using in formats:
        sql(f"WAIT FLOW of_{using}")
    sql("CREATE TABLE copied SHALLOW CLONE of_delta")
    with pytest.raises(PySparkException, match=r"copied is a copy of the streaming table spark_catalog\.default\.of_delta"):
        sql("DROP STREAMING TABLE copied")

    def is_nobody_s(using: str) -> None:
        table = f"of_{using}"
        sql(f"DROP TABLE {table}")
        sql(f"CREATE TABLE {table} USING {using} AS SELECT 1 AS mine")
        for statement in (create.format(using), f"ALTER STREAMING TABLE {table} SET TBLPROPERTIES ('a' = 'b')"):
            with pytest.raises(PySparkException, match=r"is now another table|was dropped and recreated|of the format parquet"):
                sql(statement)
        (said,) = sql(f"DROP STREAMING TABLE {table}")
        assert said[0].startswith(
            f"flow {table} dropped; spark_catalog.default.{table} stays: it is not the table that the flow made."
        )
        assert sql.batch(f"SELECT * FROM {table}") == [(1,)]
        with pytest.raises(PySparkException, match=rf"spark_catalog\.default\.{table} is no streaming table"):
            sql(f"DROP STREAMING TABLE {table}")

    side_by_side(is_nobody_s, formats)
    assert sql("SHOW FLOWS") == []


@pytest.mark.parametrize("query", ["SELECT k, v FROM STREAM ev", SUMS], ids=["appends", "sums"])
def test_a_target_that_is_made_anew_elsewhere_gets_no_rows(sql: Workshop, tmp_path: Path, query: str) -> None:
    """The files of the table that was dropped are still there; the name leads to others."""
    sql.source()
    create = f"CREATE TABLE fed USING delta LOCATION '{tmp_path}/{{}}' AS {query.replace('STREAM', '')} LIMIT 0"
    sql(create.format("before"))
    sql(f"CREATE FLOW f AS INSERT INTO fed {query}")
    sql("WAIT FLOW f")
    sql("DROP TABLE fed")
    sql(create.format("after"))
    sql("INSERT INTO ev VALUES ('c', 4)")
    with pytest.raises(PySparkException, match=rf"is now another table, or has moved: it is not in file:{tmp_path}/before"):
        sql("WAIT FLOW f")
    assert len(sql("SELECT * FROM fed")) == 0


# Flows.


def test_the_comment_of_a_flow_and_the_name_of_its_stream_are_kept_over_a_restart(sql: Workshop) -> None:
    sql.source()
    queries = {
        "rows": "SELECT k, v FROM STREAM ev IDENTIFIED BY events",
        "sums": SUMS.replace("STREAM ev", "STREAM ev IDENTIFIED BY `the events` AS e"),
    }
    for table, query in queries.items():
        sql(f"CREATE STREAMING TABLE {table} AS {query}")
    sql("CREATE TABLE fed (k STRING, v INT) USING delta")
    sql("CREATE FLOW f COMMENT 'it''s for the web team' AS INSERT INTO fed SELECT * FROM STREAM ev")
    assert sql.shown("f").comment == "it's for the web team"
    for table in queries:
        sql(f"WAIT FLOW {table}")
    sql.crash()
    sql("INSERT INTO ev VALUES ('a', 9)")
    assert sorted(sql.resume()) == ["f", "rows", "sums"]
    for table in queries:
        sql(f"WAIT FLOW {table}")
    assert sql.batch("SELECT * FROM rows") == sql.batch("SELECT k, v FROM ev")
    assert sql.batch("SELECT * FROM sums") == sql.batch(COUNTS.format("ev"))
    assert sql.shown("f").comment == "it's for the web team"
    assert ("comment", "it's for the web team") in [tuple(row) for row in sql("DESCRIBE FLOW f")]


def test_a_name_of_a_stream_is_refused_where_there_is_no_checkpoint(sql: Workshop) -> None:
    sql.source()
    with pytest.raises(PySparkException, match="`IDENTIFIED BY events` names a stream in a checkpoint"):
        sql("SELECT k, count(*) FROM STREAM ev IDENTIFIED BY events GROUP BY k GLOBAL WINDOW END OF STREAM")


def test_insert_replace_where_of_a_stream_is_refused(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE fed (k STRING, v INT) USING delta")
    with pytest.raises(PySparkException, match=r"INSERT INTO \.\. REPLACE cannot read a stream"):
        sql("INSERT INTO fed REPLACE WHERE k = 'a' SELECT * FROM STREAM ev")
    query = "SELECT k, sum(v) AS v FROM STREAM ev WHERE k IS NULL GROUP BY k GLOBAL WINDOW END OF STREAM"
    sql(f"INSERT INTO fed REPLACE WHERE k IS NULL {query}")
    assert sql.batch("SELECT * FROM fed") == [(None, 3)]


def test_qualify_above_an_aggregate_equals_batch(sql: Workshop) -> None:
    queries = {
        "first": "SELECT k, sum(v) AS n FROM {} GROUP BY k QUALIFY row_number() OVER (ORDER BY n DESC) = 1",
        "most": "SELECT k, sum(v) AS n FROM {} GROUP BY k HAVING n > 1 QUALIFY max(n) OVER () = n",
        "distinct_ones": "SELECT k FROM (SELECT DISTINCT k FROM {}) QUALIFY row_number() OVER (ORDER BY k) < 3",
        "distinct_sums": "SELECT DISTINCT sum(v) AS n FROM {} GROUP BY k, v QUALIFY row_number() OVER (ORDER BY n) < 3",
    }
    sql.source()

    def create(table: str) -> None:
        sql(f"CREATE STREAMING TABLE {table} AS {queries[table].format('STREAM ev')}")

    def equals_batch(table: str) -> None:
        sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT * FROM {table}") == sql.batch(queries[table].format("ev"))

    side_by_side(create, queries)
    for values in ("('b', 5)", "('a', 90)"):
        sql(f"INSERT INTO ev VALUES {values}")
        side_by_side(equals_batch, queries)


# Paths.


def test_a_job_fills_a_table_that_is_named_by_its_path(sql: Workshop, tmp_path: Path) -> None:
    sql.source()
    query = COUNTS.format("STREAM ev") + " GLOBAL WINDOW END OF STREAM"
    for recovery in ("true", "false"):
        sql(f"SET execution.batch.job-recovery.enabled = {recovery}")
        path = f"delta.`{tmp_path / f'made {recovery}'}`"
        (said,) = sql(f"CREATE TABLE {path} USING delta AS {query}")
        assert "finished into" in said[0], recovery
        assert sql.batch(f"SELECT * FROM {path}") == sql.batch(COUNTS.format("ev")), recovery
        with pytest.raises(PySparkException, match="already"):
            sql(f"CREATE TABLE {path} USING delta AS {query}")
        sql(f"INSERT INTO {path} {query}")
        assert sql.batch(f"SELECT count(*) FROM {path}") == [(6,)], recovery
        with pytest.raises(PySparkException):
            sql(f"INSERT INTO delta.`{tmp_path / 'nothing'}` {query}")


def test_a_flow_appends_to_a_table_that_is_named_by_its_path(sql: Workshop, tmp_path: Path) -> None:
    sql.source()
    path = f"delta.`{tmp_path / 'fed'}`"
    sql(f"CREATE TABLE {path} (k STRING, v INT) USING delta")
    sql(f"CREATE FLOW f AS INSERT INTO {path} SELECT * FROM STREAM ev")
    sql("WAIT FLOW f")
    assert sql.batch(f"SELECT * FROM {path}") == sql.batch("SELECT * FROM ev")
