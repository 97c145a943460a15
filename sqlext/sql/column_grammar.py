"""The grammar of a table's column list: columns, and keys that are informational."""

from __future__ import annotations

from sqlext.errors import SyntaxProblem, UnsupportedError
from sqlext.options import ValueText
from sqlext.plan.job_graph import ColumnDefinition
from sqlext.sql.cursor import Cursor

CONSTRAINT_PROPERTY = "sqlext.constraint."
"""The prefix, before the constraint's name, of the table property that stores a key: Delta has no other place for it."""

_AFTER_A_TYPE = frozenset("NOT COMMENT CONSTRAINT PRIMARY REFERENCES FOREIGN CHECK UNIQUE DEFAULT GENERATED MASK".split())
_CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "FOREIGN", "CHECK", "UNIQUE")


class ColumnCursor(Cursor):
    """A cursor that reads `(a BIGINT NOT NULL COMMENT '..', b, CONSTRAINT pk PRIMARY KEY (a) RELY)`."""

    _kind = "streaming table"  # what is made or changed, for messages

    def _table_columns(self) -> tuple[tuple[ColumnDefinition, ...], dict[str, ValueText]]:
        """Read a column list; return the columns, and the table properties that store the keys."""
        self._expect("(")
        columns: list[ColumnDefinition] = []
        keys: dict[str, ValueText] = {}
        while True:
            if self._word() in _CONSTRAINTS and self._word(1) not in (",", ")"):
                self._take_constraint(columns, keys)
            else:
                self._take_column(columns)
            if not self._take(","):
                break
        self._expect(")")
        return tuple(columns), keys

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

    def _take_constraint(self, columns: list[ColumnDefinition], keys: dict[str, ValueText]) -> None:
        """Read `[CONSTRAINT name] PRIMARY KEY (columns) ..` or `.. FOREIGN KEY (columns) REFERENCES t [(columns)] ..`."""
        position = self._position()
        name = self._identifier() if self._take("CONSTRAINT") else ""
        start, kind = self._at, self._word()
        if not (self._take("PRIMARY", "KEY") or self._take("FOREIGN", "KEY")):
            shown = f" `{name}`" if name else ""
            raise UnsupportedError(
                f"The constraint{shown} is {kind}; a {self._kind} supports NOT NULL, which is enforced, and PRIMARY KEY and "
                "FOREIGN KEY, which are informational. Filter the rows in the query.",
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
        key = CONSTRAINT_PROPERTY + (name or f"{kind.lower()}_key_{len(keys) + 1}")
        if key in keys:
            raise SyntaxProblem(f"The constraint `{name}` is given twice.", position)
        keys[key] = ValueText(self._text[self._tokens[start].start : self._tokens[self._at - 1].stop], position)

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
