"""Detection: the tokens are Spark's, and only a statement that uses a construct of ours counts as ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.options import HINTS
from sqlext.sql.tokens import is_ours, is_stream_relation, setting_key, tokens


def cut(text: str) -> list[str]:
    """The tokens' texts."""
    return [token.text for token in tokens(text)]


def kinds(text: str) -> list[str]:
    return [token.kind for token in tokens(text)]


# Spark's lexical rules


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\r\n\f", []),
        ("select a.b", ["select", "a", ".", "b"]),
        ("a_1 é 表 _x 2c", ["a_1", "é", "表", "_x", "2c"]),
        ("a>=b", ["a", ">", "=", "b"]),
        ("1L - 2.5", ["1L", "-", "2", ".", "5"]),
        ("x;y;", ["x", ";", "y", ";"]),
        ("a -- b\nc", ["a", "c"]),
        ("a -- b\rc", ["a", "c"]),
        ("a -- b\r\nc", ["a", "c"]),
        ("a -- b", ["a"]),
        ("a --", ["a"]),
        ("a - -b", ["a", "-", "-", "b"]),
        ("a --'b\nc'd'", ["a", "c", "'d'"]),
        ("a -- b\\\nc\nd", ["a", "d"]),  # a backslash before the line feed goes on with the comment
        ("a -- b\\\n\\\nc\nd", ["a", "d"]),
        ("a -- b\\\r\nc", ["a", "c"]),  # but not before a carriage return
        ("a -- b\\c\nd", ["a", "d"]),
        ("a /* b */ c", ["a", "c"]),
        ("/**/a/***/", ["a"]),
        ("/*/ a */ b", ["b"]),
        ("a /* b /* c */ d */ e", ["a", "e"]),
        ("a /* /* /* */ */ b */ c", ["a", "c"]),
        ("a /* b /* c */ d", ["a"]),
        ("a /* -- b */ c", ["a", "c"]),
        ("a /* ' */ c", ["a", "c"]),
        ("a /* b /*+ c */ d", ["a", "d"]),  # hints do not nest
        ("a /* b", ["a"]),
        ("a /*", ["a"]),
        ("a */ b", ["a", "*", "/", "b"]),
        ("a -- /* b\nc", ["a", "c"]),
        ("'a' \"b\" `c`", ["'a'", '"b"', "`c`"]),
        ("'it''s' x", ["'it''s'", "x"]),
        ('"a""b" x', ['"a""b"', "x"]),
        ("`a``b` x", ["`a``b`", "x"]),
        (r"'it\'s' x", [r"'it\'s'", "x"]),
        (r'"a\"b" x', [r'"a\"b"', "x"]),
        (r"'a\\' x", [r"'a\\'", "x"]),
        (r"`a\` x", [r"`a\`", "x"]),  # no escapes in backticks
        ("'' x \"\"", ["''", "x", '""']),
        ("'a\nb\\\nc' x", ["'a\nb\\\nc'", "x"]),
        ("'/* a' */", ["'/* a'", "*", "/"]),
        ("'-- a' b", ["'-- a'", "b"]),
        ("'\"' b '\"'", ["'\"'", "b", "'\"'"]),
        (r"r'a\' b", [r"r'a\'", "b"]),  # raw strings have no escapes
        (r'R"a\" b', [r'R"a\"', "b"]),
        ("r'a''b'", ["r'a'", "'b'"]),
        ("xr'a' b", ["xr", "'a'", "b"]),
        ("r `a`", ["r", "`a`"]),
        ("$$it's$$ a", ["$$it's$$", "a"]),
        ("$x$ $$ ' $x$ a", ["$x$ $$ ' $x$", "a"]),
        ("$x$ $X$ $x$ a", ["$x$ $X$ $x$", "a"]),
        ("$1$ a", ["$", "1", "$", "a"]),
        ("'a b", ["'", "a", "b"]),
        ('"a b', ['"', "a", "b"]),
        ("`a b", ["`", "a", "b"]),
        ("r'a b", ["r", "'", "a", "b"]),
        ("'a\\'", ["'", "a", "\\", "'"]),
        ("$$a b", ["$", "$", "a", "b"]),
        ("select /*+ a(b), c */ d", ["select", "/*+ a(b), c */", "d"]),
        ("select/*+a*/d", ["select", "/*+a*/", "d"]),
        ("/*+ a */ /*+ b */", ["/*+ a */", "/*+ b */"]),
        ("/*+ a", ["/*+ a"]),
        ("/*+", ["/*+"]),
        ("x /*+*/ y", ["x", "/*+*/", "y"]),
    ],
)
def test_a_text_is_cut_as_spark_cuts_it(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


def test_every_token_has_its_kind() -> None:
    assert kinds("a `b` 'c' \"d\" r'e' $$f$$ /*+ g */ ( 1 =") == [
        *("word", "quoted", "text", "text", "text", "text", "hint", "symbol", "word", "symbol"),
    ]


def test_only_a_bare_word_has_an_upper_case_form() -> None:
    assert [token.upper for token in tokens("Select `select` 'select' ( 1l")] == ["SELECT", "", "", "", "1L"]


def test_offsets_are_those_of_the_text() -> None:
    assert [(token.start, token.stop) for token in tokens("a /* b */\n 'cd'")] == [(0, 1), (11, 15)]


PIECES = st.sampled_from(
    ["'", '"', "`", "\\", "--", "\n", "\r\n", "\r", "/*", "*/", "/*+", "r'", 'R"', "$$", "$a$", "a", "stream", " ", ";", "(", "é"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_tokens_cover_a_text_in_order_and_without_overlap(text: str) -> None:
    end = 0
    for token in tokens(text):
        assert text[token.start : token.stop] == token.text != ""
        assert tokens(text[end : token.start]) == []  # what is left out is white space and comments
        assert token.start >= end
        end = token.stop
    assert tokens(text[end:]) == []


# Statements of ours


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_of_ours_is_enough(hint: str) -> None:
    assert is_ours(f"SELECT /*+ {hint}(t, '1 h') */ k FROM t")
    assert is_ours(f"select /*+ {hint.lower()}(t, '1 h') */ k from t")


COMMANDS = [
    "CREATE STREAMING TABLE t AS SELECT * FROM STREAM s",
    "CREATE STREAMING TABLE IF NOT EXISTS t AS SELECT 1",
    "CREATE OR REFRESH STREAMING TABLE t AS SELECT * FROM s",
    "CREATE STREAMING TABLE t",
    "CREATE FLOW f AS INSERT INTO t SELECT * FROM STREAM s",
    "CREATE FLOW IF NOT EXISTS f AS INSERT INTO t BY NAME SELECT 1",
    "SHOW FLOWS",
    "DESCRIBE FLOW f",
    "DESC FLOW f",
    "DESCRIBE FLOW `f`",
    "START FLOW f",
    "STOP FLOW f",
    "FLUSH FLOW f",
    "WAIT FLOW f",
    "WAIT FLOW f TIMEOUT 5 minutes",
    "DROP FLOW f",
    "DROP FLOW IF EXISTS f",
    "ALTER FLOW f SET ('execution.flush.max-interval' = '5 min')",
    "ALTER FLOW f AS SELECT k, count(*) AS n FROM STREAM t GROUP BY k",
    "SHOW JOBS",
    "SHOW JOB EVENTS j",
    "RESUME JOB j",
    "CANCEL JOB j",
]
BOUNDED = [
    "SELECT k, count(*) FROM s GROUP BY k GLOBAL WINDOW END OF STREAM",
    "SELECT count(*) FROM s GLOBAL WINDOW END OF STREAM",
    "SELECT count(*) FROM s GLOBAL/**/WINDOW --end\nEND OF/**/STREAM",
    "CREATE TABLE t AS SELECT k FROM s GROUP BY k GLOBAL WINDOW END OF STREAM",
    "INSERT INTO t SELECT k FROM s GROUP BY k GLOBAL WINDOW END OF STREAM",
    "SELECT * FROM STREAM o JOIN (SELECT k FROM h GROUP BY k GLOBAL WINDOW END OF STREAM) USING (k)",
    "WITH c AS (SELECT k FROM s GROUP BY k GLOBAL WINDOW /* at the */ END OF STREAM) SELECT * FROM c",
]
HINTED = [
    "SELECT /*+ FLUSH_INTERVAL('2 minutes') */ k FROM t",
    "SELECT /*+FLUSH_INTERVAL('2 minutes')*/ k FROM t",
    "INSERT INTO t SELECT /*+ BROADCAST(d), BACKLOG_INTERVAL(o, '30 min') */ * FROM STREAM o JOIN d",
    "SELECT /*+ BROADCAST(d) */ /*+ BACKLOG_THRESHOLD(o, '5 min') */ * FROM STREAM o JOIN d",
    "SELECT * FROM (SELECT /*+ FLUSH_INTERVAL('1 s') */ k FROM STREAM s)",
]
WRITES = [
    "INSERT INTO t SELECT * FROM STREAM s",
    "INSERT WITH SCHEMA EVOLUTION INTO t SELECT * FROM STREAM s",
    "WITH c AS (SELECT 1) INSERT WITH SCHEMA EVOLUTION INTO t SELECT * FROM c, STREAM s",
    "INSERT INTO TABLE t SELECT * FROM STREAM(s)",
    "INSERT INTO t BY NAME SELECT * FROM STREAM s",
    "INSERT INTO t (a, b) SELECT * FROM STREAM s",
    "INSERT INTO t (SELECT * FROM STREAM s)",
    "INSERT INTO t FROM STREAM s SELECT a",
    "INSERT INTO t SELECT * FROM d JOIN STREAM s USING (k)",
    "INSERT INTO t SELECT * FROM d, STREAM s",
    "INSERT INTO t SELECT * FROM d, STREAM(s)",
    "INSERT INTO t SELECT * FROM d, STREAM `s`",
    "INSERT INTO t SELECT * FROM (STREAM s)",
    "INSERT INTO t SELECT * FROM (SELECT a FROM b WHERE c), (STREAM s)",
    "INSERT INTO t SELECT * FROM --events\n STREAM s",
    f"INSERT INTO t SELECT * FROM{' ' * 200}STREAM s",
    "INSERT INTO t SELECT * FROM STREAM `my stream` AS s",
    "INSERT INTO t SELECT * FROM STREAM cat.db.s",
    "INSERT INTO t SELECT * FROM STREAM s WITH ('maxFilesPerTrigger' = '1') AS x",
    "INSERT INTO t SELECT * FROM STREAM s WATERMARK at DELAY OF INTERVAL 1 MINUTE",
    "INSERT INTO t SELECT * FROM STREAM read_files('/x', format => 'json')",
    "INSERT INTO t SELECT k FROM d UNION ALL SELECT k FROM STREAM s",
    "INSERT INTO t SELECT k, (SELECT max(v) FROM d) FROM STREAM s",
    "INSERT OVERWRITE TABLE t SELECT * FROM STREAM s",
    "WITH c AS (SELECT * FROM STREAM s) INSERT INTO t SELECT * FROM c",
    "FROM STREAM s INSERT INTO t SELECT k",
    "FROM STREAM s INSERT INTO t SELECT k INSERT INTO u SELECT v",
    "CREATE TABLE t AS SELECT * FROM STREAM s",
    "CREATE OR REPLACE TABLE t USING delta AS SELECT * FROM STREAM s",
    "CREATE TABLE IF NOT EXISTS t AS WITH c AS (SELECT * FROM STREAM s) SELECT * FROM c",
    "REPLACE TABLE t AS SELECT * FROM STREAM s",
    "INSERT INTO stream SELECT * FROM STREAM stream",
]
SETTINGS = [
    "SET execution.flush.max-interval = 2 min",
    "SET execution.flush.max-interval=2 min",
    "SET execution.flush.max-interval",
    "SET `execution.flush.max-interval` = '2 min'",
    "SET Execution.Flush.Max-Interval = 2 min",
    "SET state.backend.type = delta",
    "SET backlog.lag-treshold = 5 min",  # misspelt keys are ours too, or nobody would say so
    "SET job-event.store.write-buffer.size = 1 MB",
    "SET operator-coordinator-snapshot.min-pause = 1 min",
    "SET spark.sqlext.execution.flush.max-interval = 2 min",
    "SET spark.sqlext.nonsense = 1",
]
EXPLAINED = [f"EXPLAIN {mode}{COMMANDS[0]}" for mode in ("", "EXTENDED ", "FORMATTED ", "COST ", "CODEGEN ", "LOGICAL ")]
OURS = [*COMMANDS, *BOUNDED, *HINTED, *WRITES, *SETTINGS, *EXPLAINED, "EXPLAIN SHOW FLOWS", "EXPLAIN " + WRITES[0]]

# Statements of Spark's that look like ours

PLAIN = [
    "",
    ";",
    "SELECT 1",
    "SELECT * FROM STREAM s",  # a streaming DataFrame, which Spark makes itself
    "SELECT k, count(*) FROM STREAM(s) GROUP BY k",
    "WITH c AS (SELECT * FROM STREAM s) SELECT * FROM c",
    "CREATE TEMPORARY VIEW v AS SELECT * FROM STREAM s",
    "CREATE VIEW streaming AS SELECT * FROM STREAM s",
    "CACHE TABLE c AS SELECT * FROM STREAM s",
    "EXPLAIN SELECT * FROM STREAM s",
    "EXPLAIN EXTENDED SELECT 1 AS stream",
    "SHOW TABLES",
    "SHOW FLOW",
    "SHOW JOB",
    "SHOW STREAMS",
    "SHOW COLUMNS FROM stream FROM flow",
    "DROP TABLE flow",
    "DROP VIEW flows",
    "ALTER TABLE flow SET TBLPROPERTIES ('execution.flush.max-interval' = '1 s')",
    "CREATE TABLE flow (stream INT)",
    "CREATE TABLE streaming AS SELECT 1 AS flow",
    "REFRESH TABLE stream",
    "DESCRIBE flow",
    "DESC flow;",
    "DESCRIBE flow.t",
    "DESCRIBE TABLE flow",
    "DESCRIBE stream flow",
    "USE flow",
    "CALL sys.flush(stream => 'flow')",
]
NAMES = [
    "SELECT stream, flow, flows, job, jobs, flush FROM stream",
    "SELECT * FROM stream WHERE stream.flow = 1",
    "INSERT INTO stream SELECT * FROM flow",
    "INSERT INTO stream VALUES (1)",
    "INSERT INTO t SELECT * FROM stream",
    "INSERT INTO t SELECT * FROM stream;",
    "INSERT INTO t SELECT * FROM stream AS s",
    "INSERT INTO t SELECT * FROM stream WHERE k > 1",
    "INSERT INTO t SELECT * FROM stream GROUP BY k",
    "INSERT INTO t SELECT * FROM stream JOIN flow USING (k)",
    "INSERT INTO t SELECT * FROM stream LEFT JOIN flow USING (k)",
    "INSERT INTO t SELECT * FROM flow JOIN stream ON true",
    "INSERT INTO t SELECT * FROM stream, flow",
    "INSERT INTO t SELECT * FROM flow, stream",
    "INSERT INTO t SELECT * FROM stream UNION ALL SELECT * FROM flow",
    "INSERT INTO t SELECT * FROM stream LIMIT 3",
    "INSERT INTO t SELECT * FROM stream.t",
    "INSERT INTO t SELECT * FROM (SELECT * FROM stream)",
    "INSERT INTO t SELECT a, stream, stream b FROM c",
    "INSERT INTO t SELECT a, stream `b` FROM c",
    "INSERT INTO t SELECT f(a, stream) FROM c",
    "INSERT INTO t SELECT a, stream(b) FROM c",
    "INSERT INTO t SELECT (stream) FROM c",
    "INSERT INTO t SELECT (SELECT max(v) FROM d), (stream(a) + 1) FROM c",
    "INSERT INTO t (stream, state, job, flow) VALUES ('from stream x', 'global window', 1, 2)",
    "INSERT INTO t (stream, flow) SELECT a, b FROM c",
    "INSERT INTO t SELECT a FROM c WHERE a IN (stream, b)",
    "INSERT INTO t SELECT a FROM c WHERE a IS DISTINCT FROM stream AND b",
    "INSERT INTO t SELECT a FROM c GROUP BY a, stream",
    "INSERT INTO t SELECT a FROM c ORDER BY a, stream DESC",
    "INSERT INTO t SELECT * FROM `STREAM` s",
    'INSERT INTO t SELECT * FROM "STREAM" s',
    "SELECT global window, end, of, stream FROM t",
    "SELECT * FROM global WINDOW w AS (ORDER BY stream)",
    "SELECT flush_interval FROM t",
    "SELECT FLUSH_INTERVAL('2 min') FROM t",
    "WITH stream AS (SELECT 1 AS k) INSERT INTO t SELECT * FROM stream",
    "WITH c AS (SELECT 1 AS insert) SELECT * FROM STREAM s",
    "MERGE INTO stream USING flow ON stream.k = flow.k WHEN MATCHED THEN DELETE",
    "UPDATE stream SET flow = 1",
    "DELETE FROM stream WHERE flow = 1",
]
QUOTED = [
    "SELECT 'CREATE STREAMING TABLE t AS SELECT 1'",
    'SELECT "GLOBAL WINDOW END OF STREAM" AS c',
    "SELECT r'GLOBAL WINDOW END OF STREAM'",
    "SELECT $$GLOBAL WINDOW END OF STREAM$$, $a$ GLOBAL WINDOW END OF STREAM $a$",
    "SELECT 'it\\'s GLOBAL WINDOW END OF STREAM'",
    "SELECT 'it''s GLOBAL WINDOW END OF STREAM'",
    "SELECT k AS `GLOBAL WINDOW END OF STREAM` FROM t",
    "SELECT k FROM t GROUP BY k /* GLOBAL WINDOW END OF STREAM */",
    "SELECT k FROM t GROUP BY k -- GLOBAL WINDOW END OF STREAM",
    "SELECT k FROM t -- \\\nGLOBAL WINDOW END OF STREAM\n",
    "SELECT k FROM t /* GLOBAL /* nested */ WINDOW END OF STREAM */",
    "SELECT k FROM t GROUP BY k GLOBAL 'WINDOW' END OF STREAM",
    "/* SHOW FLOWS */ SHOW TABLES",
    "-- SHOW FLOWS\nSHOW TABLES",
    "SHOW /* FLOWS */ TABLES",
    "'SHOW' FLOWS",
    "SELECT /* FLUSH_INTERVAL('2 min') */ k FROM t",
    "SELECT -- /*+ FLUSH_INTERVAL('2 min') */\n k FROM t",
    "SELECT '/*+ FLUSH_INTERVAL(1) */' FROM t",
    "SELECT /*+ BROADCAST(flush_interval) */ k FROM flush_interval",
    "INSERT INTO t SELECT 'FROM STREAM s' FROM c",
    "INSERT INTO t SELECT * FROM c -- , STREAM s",
]
OTHER_SETTINGS = [
    "SET",
    "SET -v",
    "SET spark.sql.shuffle.partitions = 2",
    "SET spark.sqlext.home = /tmp/execution.flush",  # a plain Spark conf
    "SET executions.x = 1",
    "SET x = execution.flush.max-interval",
    "SET TIME ZONE 'Europe/Paris'",
    "SET VAR flow = 1",
    "RESET execution.flush.max-interval",
]
SCRIPTS = [
    "BEGIN CREATE STREAMING TABLE t AS SELECT * FROM STREAM s; END",
    "BEGIN SELECT k FROM s GROUP BY k GLOBAL WINDOW END OF STREAM; END;",
    "begin\n  INSERT INTO t SELECT * FROM STREAM s;\nend",
]
NOT_OURS = [*PLAIN, *NAMES, *QUOTED, *OTHER_SETTINGS, *SCRIPTS]


@pytest.mark.parametrize("text", OURS)
def test_is_ours(text: str) -> None:
    assert is_ours(text)


@pytest.mark.parametrize("text", NOT_OURS)
def test_is_not_ours(text: str) -> None:
    assert not is_ours(text)


@pytest.mark.parametrize("text", OURS)
def test_case_line_breaks_and_a_semicolon_do_not_matter(text: str) -> None:
    assert is_ours(text.lower())
    assert is_ours(text.swapcase())
    assert is_ours(text.replace(" ", "\r\n\t"))
    assert is_ours(text + " ;\n;")


HEADERS = [
    '/* {"app": "dbt", "dbt_version": "1.11.4", "node_id": "model.shop.stream"} */\n',
    '/* {"app": "dbt"} */\n\n  -- back compat for old kwarg name\n  \n    \n\n      ',
    "/* outer /* inner */ still outer */ ",
    "-- one\n-- two\r\n/* three */--\n",
    "-- it's an \"unfinished` quote\n",
    "/**/",
]


@pytest.mark.parametrize("header", HEADERS)
def test_leading_comments_do_not_matter(header: str) -> None:
    assert [text for text in OURS if not is_ours(header + text)] == []
    assert [text for text in NOT_OURS if is_ours(header + text)] == []


COMMENT_TEXT = st.text(st.sampled_from("aé -'\"`;()=\t") | st.sampled_from("sf"), max_size=8) | st.sampled_from(
    ["GLOBAL WINDOW END OF STREAM", "SHOW FLOWS", "BEGIN", "EXPLAIN", "SET execution.x = 1", "FLUSH_INTERVAL('1 s')"]
)
SKIPPED = (
    st.text(st.sampled_from(" \t\r\n"), max_size=3)
    | COMMENT_TEXT.map("--{}\n".format)
    | COMMENT_TEXT.map("-- {}\\\n still the comment\r\n".format)
    | COMMENT_TEXT.map("/* {} */".format)
    | COMMENT_TEXT.map("/*{0} /* {0} */ {0}*/".format)
)


@given(st.lists(SKIPPED, max_size=4).map("".join), st.sampled_from([*OURS, *NOT_OURS]))
def test_whatever_is_skipped_in_front_does_not_matter(skipped: str, text: str) -> None:
    assert is_ours(skipped + text) == is_ours(text)


@given(st.lists(SKIPPED, max_size=3).map("".join), st.sampled_from([*OURS, *NOT_OURS]), st.integers(0, 30))
def test_whatever_is_skipped_between_two_tokens_does_not_matter(skipped: str, text: str, index: int) -> None:
    found = tokens(text)
    if not found or found[0].upper == "SET":  # a setting's key holds no space
        return
    at = found[index % len(found)].start
    assert is_ours(f"{text[:at]} {skipped} {text[at:]}") == is_ours(text)


# The pieces that statements.py shares


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("SET a.b-c = 1", "a.b-c"),
        ("SET a.b-c=1", "a.b-c"),
        ("SET a.b-c", "a.b-c"),
        ("SET `a.b-c` = 1", "a.b-c"),
        ("SET a b = 1", "a"),
        ("SET /* x */ a.b = 1", "a.b"),
        ("SET", ""),
        ("SET = 1", ""),
    ],
)
def test_a_settings_key_is_all_up_to_a_gap_or_the_equals_sign(text: str, key: str) -> None:
    assert setting_key(tokens(text)) == key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM STREAM s", [3]),
        ("SELECT * FROM STREAM a JOIN STREAM b, STREAM(c)", [3, 6, 9]),
        ("SELECT stream FROM STREAM stream", [3]),
        ("SELECT * FROM (SELECT * FROM STREAM a), STREAM b", [7, 11]),
        ("FROM STREAM s SELECT a", [1]),
        ("SELECT * FROM stream", []),
        ("STREAM s", []),
    ],
)
def test_which_words_name_a_streaming_relation(text: str, expected: list[int]) -> None:
    found = tokens(text)
    assert [index for index in range(len(found)) if is_stream_relation(found, index)] == expected
