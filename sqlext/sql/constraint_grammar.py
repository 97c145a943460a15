"""The grammar of constraints on rows, `EXPECT (amount > 0) ON VIOLATION QUARANTINE INTO bad`, and of REPLAY QUARANTINE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlext.errors import Position, did_you_mean
from sqlext.options import ValueText
from sqlext.plan.constraints import EXPECT_PROPERTY, Constraint, Violation
from sqlext.sql.cursor import Cursor
from sqlext.sql.statements import ReplayQuarantine
from sqlext.sql.tokens import tokens

_VIOLATIONS = ("DROP ROW", "FAIL UPDATE", "QUARANTINE INTO table")


class ConstraintCursor(Cursor):
    """A cursor that reads what follows `CONSTRAINT name`, and what follows REPLAY."""

    def expectation(self, name: str, position: Position) -> tuple[Constraint, str]:
        """Read `EXPECT (condition) [ON VIOLATION ..]`; return it, and its text behind EXPECT.

        Args:
            name: the name of the constraint.
            position: its place.
        """
        self._expect("EXPECT")
        start = self._at
        if self._word() != "(":
            raise self._problem("Expected ( and a condition")
        self._brackets()
        first, inside = self._tokens[start], self._tokens[start + 1 : self._at - 1]
        condition = self._text[inside[0].start : inside[-1].stop] if inside else ""
        if not condition:
            raise self._problem(f"The constraint `{name}` has no condition")
        violation, quarantine = Violation.ALLOW, tuple[str, ...]()
        if self._take("ON"):
            self._expect("VIOLATION")
            violation, quarantine = self._violation()
        stop = self._tokens[self._at - 1].stop
        place = Position(position.line, position.column, position.start, stop)
        return Constraint(name, condition, violation, quarantine, place), self._text[first.start : stop]

    def _replay(self) -> ReplayQuarantine:
        """Read `QUARANTINE t [WHERE condition]`, after REPLAY."""
        self._expect("QUARANTINE")
        position = self._position()
        name, condition = self._name(), None
        if self._take("WHERE"):
            first, last = self._peek(), self._tokens[-1]
            if first is None:
                raise self._problem("Expected a condition")
            condition = ValueText(self._text[first.start : last.stop], Position.of(self._text, first.start, last.stop))
            self._at = len(self._tokens)
        return ReplayQuarantine(name, condition, position)

    def _violation(self) -> tuple[Violation, tuple[str, ...]]:
        if self._take("DROP", "ROW"):
            return Violation.DROP, ()
        if self._take("FAIL", "UPDATE"):
            return Violation.FAIL, ()
        if self._take("QUARANTINE", "INTO"):
            return Violation.QUARANTINE, self._name()
        near = did_you_mean(self._word(), [each.split()[0] for each in _VIOLATIONS])
        raise self._problem(f"Expected one of {', '.join(_VIOLATIONS)}", near)


def constraints_of(properties: Mapping[str, ValueText]) -> tuple[Constraint, ...]:
    """Return the constraints that a table's properties store.

    >>> constraints_of({"sqlext.expect.some": ValueText("(n > 0) ON VIOLATION DROP ROW")})[0].condition
    'n > 0'
    """
    found = []
    for key, given in properties.items():
        if key.startswith(EXPECT_PROPERTY):
            text = f"EXPECT {given.value}"
            cursor = ConstraintCursor(text, tokens(text))
            constraint, _ = cursor.expectation(key.removeprefix(EXPECT_PROPERTY), Position.of(text, 0))
            found.append(replace(constraint, position=given.position))
    return tuple(found)
