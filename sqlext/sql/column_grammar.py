"""The grammar of a table's column list: columns, constraints on rows, and keys that are informational."""

from __future__ import annotations

from sqlext.errors import Position, SyntaxProblem, UnsupportedError
from sqlext.options import ValueText
from sqlext.plan.constraints import EXPECT_PROPERTY
from sqlext.plan.job_graph import ColumnDefinition
from sqlext.sql.constraint_grammar import ConstraintCursor

CONSTRAINT_PROPERTY = "sqlext.constraint."
"""The prefix, before the constraint's name, of the table property that stores a key: Delta has no other place for it."""

_AFTER_A_TYPE = frozenset("NOT COMMENT CONSTRAINT PRIMARY REFERENCES FOREIGN CHECK UNIQUE DEFAULT GENERATED MASK".split())
_CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "FOREIGN", "CHECK", "UNIQUE")


class ColumnCursor(ConstraintCursor):
    """A cursor that reads `(a BIGINT NOT NULL COMMENT '..', b, CONSTRAINT c EXPECT (a > 0), PRIMARY KEY (a) RELY)`."""

    _kind = "streaming table"  # what is made or changed, for messages

    def _table_columns(self) -> tuple[tuple[ColumnDefinition, ...], dict[str, ValueText]]:
        """Read a column list; return the columns, and the table properties that store the constraints."""
        self._expect("(")
        columns: list[ColumnDefinition] = []
        constraints: dict[str, ValueText] = {}
        while True:
            if self._word() in _CONSTRAINTS and self._word(1) not in (",", ")"):
                self._take_constraint(columns, constraints)
            else:
                self._take_column(columns)
            if not self._take(","):
                break
        self._expect(")")
        return tuple(columns), constraints

    def _take_column(self, columns: list[ColumnDefinition]) -> None:
        position = self._position()
        name = self._identifier()
        if any(column.name.lower() == name.lower() for column in columns):
            raise SyntaxProblem(f"The column `{name}` is given twice.", position)
        written, is_required, comment = self._type(), False, None
        while self._word() not in (",", ")", ""):
            if self._take("NOT", "NULL"):
                is_required = True
            elif self._take("COMMENT"):
                comment = self._string()
            else:
                raise self._problem(f"Expected NOT NULL or COMMENT '..' after the column `{name}`", self._advice())
        columns.append(ColumnDefinition(name, written, is_required, comment))

    def _type(self) -> str:
        """Read a type as written, up to a word that may follow it; return an empty string if there is none."""
        start, depth = self._at, 0
        while (token := self._peek()) and (depth or not (token.text in (",", ")") or token.upper in _AFTER_A_TYPE)):
            depth += (token.text in "(<") - (token.text in ")>")
            self._at += 1
        return "" if self._at == start else self._text[self._tokens[start].start : self._tokens[self._at - 1].stop]

    def _take_constraint(self, columns: list[ColumnDefinition], constraints: dict[str, ValueText]) -> None:
        """Read `CONSTRAINT name EXPECT (condition) ..`, or a key."""
        position = self._position()
        name = self._identifier() if self._take("CONSTRAINT") else ""
        if name and self._word() == "EXPECT":
            constraint, text = self.expectation(name, position)
            key, value = EXPECT_PROPERTY + name, ValueText(text, constraint.position)
        else:
            key, value = self._key(name, position, columns, len(constraints) + 1)
        taken = {each.removeprefix(EXPECT_PROPERTY).removeprefix(CONSTRAINT_PROPERTY).lower() for each in constraints}
        if name.lower() in taken:
            raise SyntaxProblem(f"The constraint `{name}` is given twice.", position)
        constraints[key] = value

    def _key(self, name: str, position: Position, columns: list[ColumnDefinition], number: int) -> tuple[str, ValueText]:
        """Read `PRIMARY KEY (columns) ..` or `FOREIGN KEY (columns) REFERENCES t [(columns)] ..`.

        Args:
            name: the name of the key; empty: it has none.
            position: its place.
            columns: those of the list, so far.
            number: of the constraint in the list, for the property of a key without a name.

        Returns:
            The table property that stores it, and its text.
        """
        start, kind = self._at, self._word()
        if not (self._take("PRIMARY", "KEY") or self._take("FOREIGN", "KEY")):
            shown = f" `{name}`" if name else ""
            raise UnsupportedError(
                f"The constraint{shown} is {kind}; a {self._kind} supports NOT NULL and CONSTRAINT name EXPECT (condition) [ON "
                "VIOLATION ..], which are enforced, and PRIMARY KEY and FOREIGN KEY, which are informational.",
                self._position(),
            )
        self._check_names(columns, self._column_list())
        if kind == "FOREIGN":
            self._expect("REFERENCES")
            self._name()
            if self._word() == "(":
                self._column_list()
        while self._word() not in (",", ")", ""):
            if self._word() == "ENFORCED" and self._word(-1) != "NOT":
                raise self._problem(f"A key of a {self._kind} is informational and cannot be ENFORCED")
            self._at += 1
        text = self._text[self._tokens[start].start : self._tokens[self._at - 1].stop]
        return CONSTRAINT_PROPERTY + (name or f"{kind.lower()}_key_{number}"), ValueText(text, position)

    def _check_names(self, columns: list[ColumnDefinition], named: tuple[str, ...]) -> None:
        known = {column.name.lower() for column in columns}
        unknown = next((name for name in named if name.lower() not in known), None)
        if unknown is not None:
            raise self._problem(f"There is no column `{unknown}` in the column list before its key")

    def _advice(self) -> str:
        if self._word() in ("PRIMARY", "REFERENCES", "FOREIGN", "CONSTRAINT"):
            return " Write the key after the columns: CONSTRAINT name PRIMARY KEY (column) RELY."
        if self._word() in ("DEFAULT", "GENERATED"):
            return f" All values of a {self._kind} come from its query."
        return ""
