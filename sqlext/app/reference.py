"""The SQL that sqlext adds, as data: for help, completion, "did you mean" and the tables of the documentation."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlext import errors
from sqlext.functions.partition import OPERATORS
from sqlext.options import HINTS
from sqlext.spark.kafka import FUNCTION as READ_KAFKA
from sqlext.sql.file_calls import READ_FILES
from sqlext.sql.tokens import tokens
from sqlext.udfs import ALL as SHIPPED

_NEAR = 0.8


@dataclass(frozen=True)
class StatementDoc:
    """The documentation of one statement.

    Attributes:
        syntax: the syntax, written as in Spark's reference: optional parts in brackets.
        meaning: what the statement does, as a phrase.
    """

    syntax: str
    meaning: str

    @property
    def head(self) -> str:
        """The statement's first words, without optional ones."""
        parts = itertools.takewhile(lambda part: part.isupper() or part[:1] in "[{", self.syntax.split(" "))
        depth, words = 0, []
        for part in parts:
            if depth == 0 and part.isalpha():
                words.append(part)
            depth += part.count("[") - part.count("]")
        return " ".join(words)


STATEMENTS = (
    StatementDoc(
        "CREATE [OR REFRESH] STREAMING TABLE [IF NOT EXISTS] t [clauses] AS query",
        "create a table and the flow that keeps it up to date; `OR REFRESH`: an existing one is kept, and its flow resumes",
    ),
    StatementDoc(
        "CREATE OR REPLACE STREAMING TABLE t [clauses] AS query",
        "create the table, or replace the existing one, recomputed from all that its streams still hold",
    ),
    StatementDoc(
        "CREATE STREAMING TABLE t [(columns)] [clauses]", "create an empty table, for a flow that comes later; also `OR REFRESH`"
    ),
    StatementDoc(
        "CREATE STREAMING TABLE t [clauses] FLOW AUTO CDC FROM STREAM s KEYS (columns) .. SEQUENCE BY expression ..",
        "create a table and the flow that applies a database's changes to it: the newest row of each key, or its history",
    ),
    StatementDoc(
        "REFRESH STREAMING TABLE t [FULL] [SYNC | ASYNC]",
        "bring the table up to date, and wait for that unless `ASYNC`; `FULL`: recompute it from all that its streams still hold",
    ),
    StatementDoc(
        "CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] v [clauses] [schedule] [REFRESH POLICY policy] AS query",
        "create a Delta table with the rows of a query over tables; a refresh computes only what changed, where that is possible",
    ),
    StatementDoc(
        "REFRESH MATERIALIZED VIEW v [FULL] [CASCADE] [SYNC | ASYNC]",
        "bring the view up to date, and wait for that unless `ASYNC`; `FULL`: compute all of it; `CASCADE`: with all views that "
        "it reads and all that read it, over one cut",
    ),
    StatementDoc(
        "ALTER MATERIALIZED VIEW v {ADD | ALTER} schedule",
        "schedule refreshes: `SCHEDULE EVERY 10 MINUTES` or `TRIGGER ON UPDATE AT MOST EVERY 1 MINUTE`; also `DROP SCHEDULE`, "
        "`SET REFRESH POLICY policy` and the changes of `ALTER STREAMING TABLE`",
    ),
    StatementDoc(
        "DROP MATERIALIZED VIEW [IF EXISTS] v [RESTRICT | CASCADE]",
        "drop the view and its table; not if others read it, unless `CASCADE` drops these, too",
    ),
    StatementDoc("SHOW MATERIALIZED VIEWS", "list materialized views: how, when and why each was refreshed last"),
    StatementDoc(
        "CREATE FLOW [IF NOT EXISTS] f [COMMENT '..'] AS INSERT INTO t [BY NAME] query", "create a flow into an existing table"
    ),
    StatementDoc(
        "CREATE FLOW [IF NOT EXISTS] f AS INSERT INTO ONCE t [BY NAME] query",
        "append a query over tables once, in one commit; the flow is `DONE` then",
    ),
    StatementDoc(
        "CREATE FLOW [IF NOT EXISTS] f AS AUTO CDC INTO t FROM STREAM s KEYS (columns) .. SEQUENCE BY expression ..",
        "the same flow into a table that was created without a query",
    ),
    StatementDoc("INSERT INTO t [BY NAME] query", "the same, if the query reads a `STREAM`; the flow has the table's name"),
    StatementDoc(
        "SELECT .. GLOBAL WINDOW END OF STREAM",
        "run a query once over what its sources hold now, sorted by key; also in `INSERT`, `CREATE TABLE .. AS` and views",
    ),
    StatementDoc(
        "SHOW FLOWS",
        "list flows and materialized views: name, kind, target, status, phase, lag, what is unread, time to catch up, rows in, "
        "buffered, flushes, last flush, error, next try, violations",
    ),
    StatementDoc(
        "DESCRIBE FLOW f", "show all of one flow: also options and where they come from, watermark, key, stages and query"
    ),
    StatementDoc(
        "STOP FLOW f [CASCADE]",
        "flush a flow and stop it until it is started again; tells what reads its table; `CASCADE`: stop that, too",
    ),
    StatementDoc("START FLOW f", "start a flow that is stopped or has failed, or retry it at once"),
    StatementDoc("FLUSH FLOW f", "write what is buffered to the target now"),
    StatementDoc(
        "WAIT FLOW f [TIMEOUT 5 minutes]",
        "wait until all that had arrived in the first sources is in the target, through all layers (by default up to an hour)",
    ),
    StatementDoc("ALTER FLOW f SET ('key' = 'value', ..)", "change options, also while the flow runs"),
    StatementDoc(
        "ALTER FLOW f AS query",
        "give the flow of a streaming table another query, with other columns, in one commit, or with more streams that have "
        "names; those that it has are read on from where they are",
    ),
    StatementDoc(
        "SAVEPOINT FLOW f [AS name]",
        "keep a copy of the flow as it is now: the rows of its table, its state, and how far it has read its sources",
    ),
    StatementDoc(
        "RESTORE FLOW f TO [SAVEPOINT] name",
        "set the table back to a savepoint in one commit, and the flow, which goes on from there",
    ),
    StatementDoc("DROP SAVEPOINT [IF EXISTS] name ON FLOW f", "delete a savepoint"),
    StatementDoc("SHOW SAVEPOINTS [OF f]", "list the savepoints of a flow or of all flows: time, version, sources, size"),
    StatementDoc("DROP FLOW [IF EXISTS] f", "stop and remove the flow; the table stays"),
    StatementDoc(
        "ALTER STREAMING TABLE t SET TBLPROPERTIES ('key' = 'value', ..)",
        "change options and other properties; also `UNSET TBLPROPERTIES`, `ALTER COLUMN c COMMENT '..'` and `CLUSTER BY (..)`",
    ),
    StatementDoc(
        "ALTER STREAMING TABLE t {ADD CONSTRAINT c EXPECT (condition) [ON VIOLATION ..] | DROP CONSTRAINT [IF EXISTS] c}",
        "change what rows of the table must hold; see constraints",
    ),
    StatementDoc(
        "REPLAY QUARANTINE t [WHERE condition]",
        "bring quarantined rows that hold their flow's constraints now into its table",
    ),
    StatementDoc(
        "DROP STREAMING TABLE [IF EXISTS] t [RESTRICT | CASCADE]",
        "drop the table and its flow; not if others read it, unless `CASCADE` drops these, too",
    ),
    StatementDoc(
        "SHOW LINEAGE [OF t]", "list which tables are made of which others, all or those of the chain of one table, by layers"
    ),
    StatementDoc(
        "SHOW JOBS",
        "list the jobs that survive their driver: status, parts run and skipped, running vertices, size of the events, error",
    ),
    StatementDoc(
        "SHOW JOB EVENTS j", "list an unfinished job's parts: how they were divided, when they finished, rows and bytes"
    ),
    StatementDoc("RESUME JOB j", "resume a job that failed, whose driver died, or whose statement was canceled"),
    StatementDoc("CANCEL JOB j", "end a job and delete its folder"),
    StatementDoc("SHOW PARTITION FUNCTIONS", "list the Python functions that partition operators can call"),
    StatementDoc("SET key = value", "set an option for the flows and jobs that this session creates"),
    StatementDoc(
        "EXPLAIN statement",
        "show the job graph, operator attributes, stages, why rows are buffered or not, and the rules that fired",
    ),
)

SPARK_HEADS = tuple(
    " ".join(head.split())
    for head in """
    SELECT; WITH; VALUES; FROM; INSERT INTO; INSERT OVERWRITE; MERGE INTO; UPDATE; DELETE FROM; USE; SET; RESET; EXPLAIN;
    CREATE TABLE; CREATE OR REPLACE TABLE; CREATE VIEW; CREATE OR REPLACE VIEW; CREATE TEMPORARY VIEW;
    CREATE OR REPLACE TEMPORARY VIEW; CREATE DATABASE; CREATE SCHEMA; CREATE FUNCTION; DROP TABLE; DROP VIEW; DROP DATABASE;
    DROP SCHEMA; DROP FUNCTION; ALTER TABLE; ALTER VIEW; ALTER DATABASE; ALTER SCHEMA; TRUNCATE TABLE; ANALYZE TABLE; CACHE TABLE;
    UNCACHE TABLE; REFRESH TABLE; DESCRIBE TABLE; DESCRIBE EXTENDED; DESCRIBE DETAIL; DESCRIBE HISTORY; DESCRIBE QUERY;
    DESCRIBE FUNCTION; SHOW TABLES; SHOW VIEWS; SHOW DATABASES; SHOW SCHEMAS; SHOW CATALOGS; SHOW COLUMNS; SHOW CREATE TABLE;
    SHOW FUNCTIONS; SHOW PARTITIONS; SHOW TBLPROPERTIES; SHOW TABLE EXTENDED; OPTIMIZE; VACUUM; RESTORE TABLE; DECLARE VARIABLE;
    EXECUTE IMMEDIATE; BEGIN
    """.split(";")
)
"""The first words of Spark's and Delta's own statements."""

_LONGER_HEADS = ("CREATE OR REFRESH STREAMING TABLE", "CREATE OR REPLACE MATERIALIZED VIEW")
HEADS = tuple(dict.fromkeys([*(each.head for each in STATEMENTS), *_LONGER_HEADS, *SPARK_HEADS]))
"""The first words of all statements: sqlext's, Spark's and Delta's."""

PHRASES = (
    *("GLOBAL WINDOW END OF STREAM", "WATERMARK", "DELAY OF INTERVAL", "TBLPROPERTIES", "BY NAME", "STREAM", "TIMEOUT"),
    *("SCHEDULE EVERY", "TRIGGER ON UPDATE", "AT MOST EVERY", "REFRESH POLICY", "INCREMENTAL STRICT", "CASCADE"),
)
"""The keywords of sqlext inside statements."""

FUNCTIONS = (
    *OPERATORS,
    READ_KAFKA,
    READ_FILES,
    "consistent_versions",
    "hybrid",
    "sum0",
    "collect",
    *(function.name for function in SHIPPED),
)
"""The SQL names of sqlext's functions and table functions."""


def near_statement(text: str) -> str:
    """Return " Did you mean `SHOW FLOWS`?" or the like for a statement with misspelled first words, else an empty string."""
    words = list(itertools.takewhile(bool, (token.upper for token in tokens(text)[:6])))
    best, found = 0.0, ""
    for head in HEADS:
        begins = " ".join(words[: head.count(" ") + 1])
        if begins == head:
            return ""
        likeness = difflib.SequenceMatcher(None, begins, head).ratio()
        if likeness > best:
            best, found = likeness, head
    return f" Did you mean `{found}`?" if best >= _NEAR else ""


def statements_like(words: str) -> Sequence[StatementDoc]:
    """Return the statements whose syntax contains all of the given words."""
    wanted = words.upper().split()
    return [each for each in STATEMENTS if all(word in each.syntax.upper() for word in wanted)]


def error_classes() -> Sequence[type[errors.SqlextError]]:
    """Return all errors that sqlext raises, in the order of their module."""
    found: Iterable[object] = vars(errors).values()
    return [each for each in found if isinstance(each, type) and issubclass(each, errors.SqlextError)]


def statements_table() -> str:
    """Return all statements as a Markdown table, for the documentation."""
    syntaxes = [each.syntax.replace("|", "\\|") for each in STATEMENTS]  # a bar would end its cell, even in code
    rows = [f"| `{syntax}` | {each.meaning} |" for syntax, each in zip(syntaxes, STATEMENTS, strict=True)]
    return "\n".join(["| statement | what it does |", "|---|---|", *rows]) + "\n"


def hints_table() -> str:
    """Return all hints as a Markdown table, for the documentation."""
    lines = ["| hint | applies to | sets |", "|---|---|---|"]
    for name, hint in HINTS.items():
        first = "alias, " if hint.per_source else ""
        of = "one stream of the query" if hint.per_source else "the flow"
        lines.append(f"| `/*+ {name}({first}'2 minutes') */` | {of} | `{hint.option.key}` |")
    return "\n".join(lines) + "\n"


def errors_table() -> str:
    """Return all error classes as a Markdown table, for the documentation."""
    lines = ["| error | is also a | what is wrong |", "|---|---|---|"]
    for each in error_classes():
        if each is not errors.SqlextError:
            builtin = next(base for base in each.__mro__ if base.__module__ == "builtins")
            meaning = (each.__doc__ or "").partition("\n")[0].rstrip(".")
            lines.append(f"| `{each.__name__}` | `{builtin.__name__}` | {meaning} |")
    return "\n".join(lines) + "\n"
