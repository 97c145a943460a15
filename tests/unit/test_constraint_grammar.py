"""Constraints on rows: what statements say of them, what a table's properties keep, and what is refused, where."""

from __future__ import annotations

import pytest

from sqlext.errors import SqlextError
from sqlext.plan.constraints import EXPECT_PROPERTY, Violation, quarantines
from sqlext.sql.constraint_grammar import constraints_of
from sqlext.sql.grammar import parse
from sqlext.sql.statements import AlterConstraint, CreateStreamingTable, DeclareStreamingTable, ReplayQuarantine
from sqlext.sql.tokens import is_ours

QUERY = "AS SELECT k, v FROM STREAM ev"


def test_constraints_stand_in_the_column_list_and_are_kept_in_properties() -> None:
    text = (
        "CREATE STREAMING TABLE t (k STRING, CONSTRAINT a EXPECT (v > (0)), CONSTRAINT `b c` EXPECT (k <> ')') ON VIOLATION DROP "
        "ROW, v INT, CONSTRAINT pk PRIMARY KEY (k) RELY, CONSTRAINT q EXPECT (v < 9) ON VIOLATION QUARANTINE INTO s.bad) "
    ) + QUERY
    statement = parse(text)
    assert isinstance(statement, CreateStreamingTable)
    assert [each.name for each in statement.definition.columns] == ["k", "v"]
    properties = statement.definition.properties
    assert properties[f"{EXPECT_PROPERTY}b c"].value == "(k <> ')') ON VIOLATION DROP ROW"
    found = constraints_of(properties)
    assert [(each.name, each.condition, each.violation, each.quarantine) for each in found] == [
        ("a", "v > (0)", Violation.ALLOW, ()),
        ("b c", "k <> ')'", Violation.DROP, ()),
        ("q", "v < 9", Violation.QUARANTINE, ("s", "bad")),
    ]
    assert quarantines(found) == {("s", "bad"): [found[2]]}
    position = found[0].position
    assert position is not None
    assert text[position.start : position.stop] == "CONSTRAINT a EXPECT (v > (0))"


def test_a_list_of_constraints_alone_leaves_the_columns_to_the_query() -> None:
    statement = parse(f"CREATE STREAMING TABLE t (CONSTRAINT a EXPECT (v > 0) ON VIOLATION FAIL UPDATE) {QUERY}")
    assert isinstance(statement, CreateStreamingTable)
    assert statement.definition.columns == ()
    assert constraints_of(statement.definition.properties)[0].violation is Violation.FAIL


def test_a_table_without_a_query_has_them_too() -> None:
    statement = parse("CREATE STREAMING TABLE t (v INT, CONSTRAINT a EXPECT (v > 0))")
    assert isinstance(statement, DeclareStreamingTable)
    assert [each.name for each in constraints_of(statement.definition.properties)] == ["a"]


def test_alter_and_replay() -> None:
    assert is_ours("replay quarantine s.bad where v = 1")
    added = parse("ALTER STREAMING TABLE t ADD CONSTRAINT a EXPECT (v > 0) ON VIOLATION DROP ROW")
    assert isinstance(added, AlterConstraint)
    assert added.text is not None
    assert (added.constraint, added.text.value) == ("a", "(v > 0) ON VIOLATION DROP ROW")
    dropped = parse("ALTER STREAMING TABLE t DROP CONSTRAINT IF EXISTS a")
    assert isinstance(dropped, AlterConstraint)
    assert (dropped.text, dropped.if_exists) == (None, True)
    replay = parse("REPLAY QUARANTINE s.bad WHERE v = 1 AND k IS NULL;")
    assert isinstance(replay, ReplayQuarantine)
    assert replay.condition is not None
    assert (replay.name, replay.condition.value) == (("s", "bad"), "v = 1 AND k IS NULL")
    every = parse("REPLAY QUARANTINE bad")
    assert isinstance(every, ReplayQuarantine)
    assert (every.name, every.condition) == (("bad",), None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(CONSTRAINT a EXPECT v > 0)", "Expected ( and a condition; found `v`"),
        ("(CONSTRAINT a EXPECT ())", "The constraint `a` has no condition"),
        ("(CONSTRAINT a EXPECT (v > 0) ON VIOLATION DORP ROW)", "Did you mean `DROP`?"),
        ("(CONSTRAINT a EXPECT (v > 0) ON ERROR DROP ROW)", "Expected VIOLATION"),
        ("(CONSTRAINT a EXPECT (v > 0), CONSTRAINT A EXPECT (v > 1))", "The constraint `A` is given twice."),
        ("(CONSTRAINT a EXPECT (v > 0) ON VIOLATION QUARANTINE INTO)", "Expected a name; found `)`"),
        ("(CONSTRAINT a CHECK (v > 0))", "a streaming table supports NOT NULL and CONSTRAINT name EXPECT"),
        ("TBLPROPERTIES ('sqlext.expect.a' = '(v > 0)')", "stores a constraint"),
    ],
)
def test_mistakes_are_told_at_their_place(text: str, said: str) -> None:
    with pytest.raises(SqlextError) as refused:
        parse(f"CREATE STREAMING TABLE t {text} {QUERY}")
    assert said in str(refused.value)
    assert refused.value.position is not None
    assert 26 <= refused.value.position.column <= 30 + len(text)
