"""What clients of a server see of an error. The texts are HiveServer2's and Spark's own, as they came over the wire."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sqlext.server.client_messages import for_client, hidden_folders

HIDDEN = {"/srv/wh": "<warehouse>", "/srv": "<server>"}
STACK = """
	at org.apache.spark.sql.hive.thriftserver.HiveThriftServerErrors$.runningQueryError(HiveThriftServerErrors.scala:43)
	at java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.sql.AnalysisException: [X] again
	... 12 more
"""
NOT_FOUND = "The table or view `nope` cannot be found. Verify the spelling.\nSearch path: [`a`]. SQLSTATE: 42P01; line 1 pos 14"


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        (
            "Error running query: [_LEGACY_ERROR_TEMP_3100] org.apache.spark.SparkRuntimeException: There is no flow `f`.",
            "There is no flow `f`.",
        ),
        (
            "org.apache.hive.service.cli.HiveSQLException: Error running query: [TABLE_OR_VIEW_NOT_FOUND] "
            f"org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] {NOT_FOUND};\n'Project [*]\n"
            f"+- 'UnresolvedRelation [nope], [], false\n{STACK}",
            f"[TABLE_OR_VIEW_NOT_FOUND] {NOT_FOUND}",
        ),
        (
            "Error running query: [PARSE_SYNTAX_ERROR] org.apache.spark.sql.catalyst.parser.ParseException: \n"
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nSELEC 1\n^^^\n",
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nSELEC 1\n^^^",
        ),
        (
            "Error running query: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed\n\nDriver "
            "stacktrace:\n\tat a.B.c(D.scala:1)",
            "Job aborted due to stage failure: Task 0 failed",
        ),
        (
            'An exception was thrown from Python:\nTraceback (most recent call last):\n  File "/opt/x/f.py", line 2, in f\n'
            "    return 1 // 0\n           ~~^^~~\nZeroDivisionError: division by zero",
            "An exception was thrown from Python:\nZeroDivisionError: division by zero",
        ),
        (
            'map_partition: `f` failed:\n  File "/opt/app/shares.py", line 2, in shares\n    x\nKeyError: 1',
            'map_partition: `f` failed:\n  File "shares.py", line 2, in shares\n    x\nKeyError: 1',
        ),
        ("Path does not exist: file:/srv/wh/t and /srv/other.", "Path does not exist: file:<warehouse>/t and <server>/other."),
        ("look at the time", "look at the time"),
        (STACK, "The statement failed; the server's log says why."),
    ],
)
def test_only_the_message_is_seen(told: str, seen: str) -> None:
    assert for_client(told, HIDDEN) == seen


def test_longer_folders_come_first(tmp_path: Path) -> None:
    found = hidden_folders(str(tmp_path))
    assert found[str(tmp_path)] == "<warehouse>"
    assert found[sys.prefix] == "<python>"
    assert list(found) == sorted(found, key=len, reverse=True)
    assert "/" not in found
