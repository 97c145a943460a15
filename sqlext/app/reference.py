"""What sqlext adds to SQL, as data: for help, completion, "did you mean", and the tables of the documentation."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlext import errors
from sqlext.functions.partition import OPERATORS
from sqlext.options import HINTS
from sqlext.spark.kafka import FUNCTION as READ_KAFKA
from sqlext.sql.tokens import tokens
from sqlext.udfs import ALL as SHIPPED

_NEAR = 0.8


@dataclass(frozen=True)
class StatementDoc:
    """One statement.

    Attributes:
        syntax: as Spark's own reference writes it: what is optional in brackets.
        meaning: as a phrase.
    """

    syntax: str
    meaning: str

    @property
    def head(self) -> str:
        """The words that it begins with, whatever is optional left out."""
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
        "make a table and the flow that keeps it up to date; `OR REFRESH`: if it is there, go on with it and lose nothing",
    ),
    StatementDoc(
        "CREATE OR REPLACE STREAMING TABLE t [clauses] AS query",
        "make it, or make it anew from all that its streams still hold, in place of the one that is there",
    ),
    StatementDoc(
        "REFRESH STREAMING TABLE t [FULL] [SYNC | ASYNC]",
        "bring it up to date, and wait for that unless `ASYNC`; `FULL`: compute it anew from all that its streams still hold",
    ),
    StatementDoc(
        "CREATE FLOW [IF NOT EXISTS] f [COMMENT '..'] AS INSERT INTO t [BY NAME] query", "make a flow into a table that exists"
    ),
    StatementDoc("INSERT INTO t [BY NAME] query", "the same, of a query over a `STREAM`; the flow is called like the table"),
    StatementDoc(
        "SELECT .. GLOBAL WINDOW END OF STREAM",
        "run a query over what its sources hold now, sorted by key, and end; also in `INSERT`, `CREATE TABLE .. AS`, views",
    ),
    StatementDoc(
        "SHOW FLOWS",
        "a table: name, target, status, phase, lag, time to catch up, rows in, buffered, flushes, last flush, error, next try",
    ),
    StatementDoc("DESCRIBE FLOW f", "all of one flow: also options and where they come from, watermark, key, stages, query"),
    StatementDoc("STOP FLOW f", "stop a flow, flushed, until it is started again"),
    StatementDoc("START FLOW f", "start it again"),
    StatementDoc("FLUSH FLOW f", "write what is buffered now"),
    StatementDoc("WAIT FLOW f [TIMEOUT 5 minutes]", "return when all that had arrived is in the target (an hour by default)"),
    StatementDoc("ALTER FLOW f SET ('key' = 'value', ..)", "change options; a running flow goes on with them"),
    StatementDoc("DROP FLOW [IF EXISTS] f", "stop and forget the flow; the table stays"),
    StatementDoc(
        "ALTER STREAMING TABLE t SET TBLPROPERTIES ('key' = 'value', ..)",
        "change options and other properties; also `UNSET` of these, `ALTER COLUMN c COMMENT '..'`, `CLUSTER BY (..)`",
    ),
    StatementDoc("DROP STREAMING TABLE [IF EXISTS] t", "drop the table and its flow"),
    StatementDoc(
        "SHOW JOBS",
        "a table of the jobs that survive their driver: status, parts run and skipped, what runs, size of the events, error",
    ),
    StatementDoc("SHOW JOB EVENTS j", "the parts of a job that was not finished: divided how, finished when, rows and bytes"),
    StatementDoc("RESUME JOB j", "go on with a job whose driver died, or which failed or was canceled"),
    StatementDoc("CANCEL JOB j", "end a job and take its folder away"),
    StatementDoc("SHOW PARTITION FUNCTIONS", "the Python functions that partition operators can call"),
    StatementDoc("SET key = value", "an option for the flows and jobs that this session makes"),
    StatementDoc(
        "EXPLAIN statement", "the job graph, operator attributes, stages, why rows are buffered or not, the rules that fired"
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
"""How Spark's and Delta's own statements begin."""

HEADS = tuple(dict.fromkeys([*(each.head for each in STATEMENTS), "CREATE OR REFRESH STREAMING TABLE", *SPARK_HEADS]))
"""How all statements begin."""

PHRASES = ("GLOBAL WINDOW END OF STREAM", "WATERMARK", "DELAY OF INTERVAL", "TBLPROPERTIES", "BY NAME", "STREAM", "TIMEOUT")
"""Our words inside of statements."""

FUNCTIONS = (
    *OPERATORS,
    READ_KAFKA,
    "hybrid",
    "sum0",
    "collect",
    *(function.name for function in SHIPPED),
)
"""SQL's names of our functions and table functions."""


def near_statement(text: str) -> str:
    """ " Did you mean `SHOW FLOWS`?" for a statement that begins nearly as one does, or an empty string."""
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
    """The statements that have all of some words in what they are written like."""
    wanted = words.upper().split()
    return [each for each in STATEMENTS if all(word in each.syntax.upper() for word in wanted)]


def error_classes() -> Sequence[type[errors.SqlextError]]:
    """All errors that sqlext raises, in the order of their module."""
    found: Iterable[object] = vars(errors).values()
    return [each for each in found if isinstance(each, type) and issubclass(each, errors.SqlextError)]


def statements_table() -> str:
    """All statements as a Markdown table, for the documentation."""
    syntaxes = [each.syntax.replace("|", "\\|") for each in STATEMENTS]  # a bar would end its cell, in code too
    rows = [f"| `{syntax}` | {each.meaning} |" for syntax, each in zip(syntaxes, STATEMENTS, strict=True)]
    return "\n".join(["| statement | what it does |", "|---|---|", *rows]) + "\n"


def hints_table() -> str:
    """All hints as a Markdown table, for the documentation."""
    lines = ["| hint | of | sets |", "|---|---|---|"]
    for name, hint in HINTS.items():
        first = "alias, " if hint.per_source else ""
        of = "one stream of the query" if hint.per_source else "the flow"
        lines.append(f"| `/*+ {name}({first}'2 minutes') */` | {of} | `{hint.option.key}` |")
    return "\n".join(lines) + "\n"


def errors_table() -> str:
    """All error classes as a Markdown table, for the documentation."""
    lines = ["| error | is also a | what is wrong |", "|---|---|---|"]
    for each in error_classes():
        if each is not errors.SqlextError:
            builtin = next(base for base in each.__mro__ if base.__module__ == "builtins")
            meaning = (each.__doc__ or "").partition("\n")[0].rstrip(".")
            lines.append(f"| `{each.__name__}` | `{builtin.__name__}` | {meaning} |")
    return "\n".join(lines) + "\n"
