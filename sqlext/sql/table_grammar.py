"""The grammar of the tables that sqlext keeps up to date: their clauses and properties, and what ALTER changes of them."""

from __future__ import annotations

from sqlext.errors import Position, UnsupportedError, did_you_mean
from sqlext.options import ValueText, is_option_key
from sqlext.plan.constraints import EXPECT_PROPERTY
from sqlext.plan.job_graph import DECLARED_PROPERTY, FLOW_PROPERTY, SHARED_PROPERTY
from sqlext.plan.view_spec import VIEW_PROPERTY
from sqlext.sql.column_grammar import ColumnCursor

_MARKS = {
    FLOW_PROPERTY: "the flow that made the table",
    SHARED_PROPERTY: "the table as one to which several flows append",
    DECLARED_PROPERTY: "the statement that made the table",
    VIEW_PROPERTY: "the materialized view whose rows the table holds",
}


class TableCursor(ColumnCursor):
    """A cursor that reads the parts of CREATE and ALTER STREAMING TABLE that other tables have too."""

    def _table_clause(self, others: tuple[str, ...] = ()) -> str:
        """Read COMMENT '..', LOCATION '..', PARTITIONED BY (..), CLUSTER BY (..) | AUTO | NONE or USING delta, as written.

        Args:
            others: the clauses, read elsewhere, that may stand here too.
        """
        token = self._peek()
        if token is None:
            raise self._problem("Expected AS and a query")
        start = token.start
        if self._take("COMMENT") or self._take("LOCATION"):
            self._string()
        elif self._take("PARTITIONED", "BY") or self._take("CLUSTER", "BY"):
            if not (self._take("AUTO") or self._take("NONE")):
                self._brackets()
        elif self._take("USING"):
            if not self._take("DELTA"):
                raise self._problem(f"A {self._kind} is a Delta table")
            return ""
        else:
            known = ("COMMENT", "LOCATION", "PARTITIONED BY", "CLUSTER BY", "TBLPROPERTIES", *others, "AS")
            raise self._problem(f"Expected one of {', '.join(known)}", did_you_mean(token.text, known))
        return self._text[start : self._tokens[self._at - 1].stop]

    def _table_properties(self) -> dict[str, ValueText]:
        """Read the properties of a table; refuse those that only sqlext sets."""
        found = self._properties()
        for key, given in found.items():
            _refuse_mark(key, given.position)
        return found

    def _as_alter_table(self) -> str:
        """Return the statement as ALTER TABLE, with all positions unchanged; the cursor is behind the two words for TABLE."""
        first, second = self._tokens[self._at - 2 : self._at]
        middle = "TABLE".ljust(len(first.text)) + self._text[first.stop : second.start] + " " * len(second.text)
        return self._text[: first.start] + middle + self._text[second.stop : self._tokens[-1].stop]

    def _table_change(self) -> dict[str, ValueText]:
        """Read a change of a table other than of its query: properties, comments of columns, clustering.

        Returns:
            The properties that are set.
        """
        if self._take("SET", "TBLPROPERTIES"):
            return self._end(self._table_properties())
        if self._take("UNSET", "TBLPROPERTIES"):
            self._take_unset()
            return self._end({})
        if self._take("CLUSTER", "BY"):
            return {}
        if self._take("ALTER", "COLUMN") or self._take("ALTER"):
            self._name()
            if self._take("COMMENT"):
                self._string()
                return self._end({})
        raise self._problem(
            f"Expected {self._changes()}", f" To change anything else, use CREATE OR REPLACE {self._kind.upper()}."
        )

    def _changes(self) -> str:
        """Return what ALTER can change, for a message."""
        return "SET TBLPROPERTIES (..), UNSET TBLPROPERTIES (..), ALTER COLUMN c COMMENT '..' or CLUSTER BY (..)"

    def _take_unset(self) -> None:
        """Read `[IF EXISTS] ('key', a.b-c, ..)`."""
        self._take("IF", "EXISTS")
        self._expect("(")
        while True:
            key, place = self._property_text((",", "=", ")"))
            if not key:
                raise self._problem("Expected 'key'")
            if is_option_key(key):
                raise UnsupportedError(f"The option `{key}` cannot be unset. SET it to another value.", place)
            _refuse_mark(key, place)
            if not self._take(","):
                break
        self._expect(")")


def _refuse_mark(key: str, place: Position | None) -> None:
    if key.lower().startswith(EXPECT_PROPERTY):
        raise UnsupportedError(
            f"The property `{key}` stores a constraint, so only sqlext may set or unset it. Use ALTER STREAMING TABLE .. ADD "
            "CONSTRAINT or DROP CONSTRAINT.",
            place,
        )
    if (named := _MARKS.get(key.lower())) is not None:
        raise UnsupportedError(f"The property `{key}` names {named}, so only sqlext may set or unset it. Leave it out.", place)
