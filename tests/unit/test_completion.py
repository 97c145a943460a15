"""What Tab offers at the shell's prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from sqlext.app.reference import STATEMENTS
from sqlext.options import HINTS, OPTIONS
from sqlext.shell.completion import StatementCompleter


class Few:
    """A session with few names."""

    def flows(self) -> Mapping[str, str]:
        return {"page_views": "streaming table, running", "Daily totals": "insert into, stopped"}

    def jobs(self) -> Mapping[str, str]:
        return {"7f3a": "RUNNING, a.b.t", "81bc": "FAILED, a.b.u"}

    def relations(self, database: str = "") -> Mapping[str, str]:
        return {"sales.orders": "table"} if database == "nowhere" else {"orders": "table", "sales": "database", "owners": "view"}

    def words(self) -> Sequence[str]:
        return ["SELECT", "FROM", "WHERE", "STRUCT"]

    def functions(self) -> Sequence[str]:
        return ["substring", "sum"]


def offered(text: str) -> list[str]:
    """What the text would be with each of the completions."""
    found = StatementCompleter(Few()).get_completions(Document(text), CompleteEvent(completion_requested=True))
    return [text[: len(text) + each.start_position] + each.text for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # statements, in the case that they are begun in
        ("SHOW FL", ["SHOW FLOWS"]),
        ("show fl", ["show flows"]),
        ("SELECT 1; STO", ["SELECT 1; STOP FLOW"]),
        ("CREATE STREAMING ", ["CREATE STREAMING TABLE"]),
        ("CREATE FL", ["CREATE FLOW"]),
        ("CREATE MAT", ["CREATE MATERIALIZED VIEW"]),
        ("refresh mat", ["refresh materialized view"]),
        ("DROP MATERIALIZED VIEW ow", ["DROP MATERIALIZED VIEW owners"]),
        ("CREATE MATERIALIZED VIEW v TRIG", ["CREATE MATERIALIZED VIEW v TRIGGER ON UPDATE"]),
        # names of the session
        ("STOP FLOW pa", ["STOP FLOW page_views"]),
        ("DROP FLOW IF EXISTS p", ["DROP FLOW IF EXISTS page_views"]),
        ("DESC FLOW ", ["DESC FLOW `Daily totals`", "DESC FLOW page_views"]),
        ("RESUME JOB ", ["RESUME JOB 7f3a", "RESUME JOB 81bc"]),
        ("SHOW JOB EVENTS 8", ["SHOW JOB EVENTS 81bc"]),
        ("SELECT * FROM or", ["SELECT * FROM orders"]),
        ("SELECT * FROM STREAM or", ["SELECT * FROM STREAM orders"]),
        ("SELECT * FROM orders AS o, ow", ["SELECT * FROM orders AS o, owners"]),
        ("SELECT * FROM sales.ow", ["SELECT * FROM sales.owners"]),
        ("INSERT INTO `or", ["INSERT INTO `orders`"]),
        # words and functions, once there is a letter
        ("SELECT substr", ["SELECT substring"]),
        ("SELECT k FROM orders GLO", ["SELECT k FROM orders GLOBAL WINDOW END OF STREAM"]),
        ("SELECT * FROM map_pa", ["SELECT * FROM map_partition"]),
        # options, wherever they are given
        ("SET execution.flush.max", ["SET execution.flush.max-interval"]),
        ("SET execution.runtime-mode = ", ["SET execution.runtime-mode = STREAMING", "SET execution.runtime-mode = BATCH"]),
        ("ALTER FLOW f SET ('job-event.store.write-buffer.s", ["ALTER FLOW f SET ('job-event.store.write-buffer.size"]),
        ("ALTER FLOW f SET ('a' = '1', 'backlog.", ["ALTER FLOW f SET ('a' = '1', 'backlog.lag-threshold"]),
        ("CREATE STREAMING TABLE t TBLPROPERTIES ('state.backend.type' = 'ro", None),
        # hints
        ("SELECT /*+ FLU", ["SELECT /*+ FLUSH_INTERVAL"]),
        # what the shell itself is told
        ("\\wa", ["\\watch"]),
        # nothing
        ("SELECT 'sel", []),
        ("STOP FLOW nothing_like_it", []),
    ],
)
def test_completions(text: str, expected: list[str] | None) -> None:
    if expected is None:
        expected = [f"{text[:-2]}rocksdb"]
    assert sorted(offered(text)) == sorted(expected)


def test_every_statement_and_hint_and_option_can_be_completed() -> None:
    for statement in STATEMENTS:
        *first, last = statement.head.split()
        begun = " ".join([*first, last[:2]])
        assert statement.head in offered(begun), begun
    assert offered("SELECT /*+ ") == [f"SELECT /*+ {name}" for name in sorted(HINTS)]
    assert offered("SET ") == [f"SET {key}" for key in sorted(OPTIONS)]


def test_a_completion_says_what_it_is() -> None:
    completer = StatementCompleter(Few())
    (flow,) = completer.get_completions(Document("STOP FLOW pa"), CompleteEvent(completion_requested=True))
    assert (flow.display_text, flow.display_meta_text) == ("page_views", "streaming table, running")


def test_a_file_s_name_is_completed(tmp_path: Path) -> None:
    (tmp_path / "load.sql").touch()
    assert offered(f"\\i {tmp_path}/lo") == [f"\\i {tmp_path}/load.sql"]
