"""The grammar of INSERT up to its query. Names before the query may be any words: `INSERT INTO from (select, to) SELECT ..`."""

from __future__ import annotations

from dataclasses import dataclass

from sqlext.errors import UnsupportedError
from sqlext.sql.cursor import Cursor
from sqlext.sql.statements import Name
from sqlext.sql.tokens import begins_insert

_OPERATORS = frozenset("IN EXISTS ANY SOME ALL AND OR NOT ON WHERE DISTINCT = < > ! + - * / % | & ^ ( ,".split())
"""What stands before a subquery, or a FROM that begins no query, in the condition of REPLACE."""


@dataclass(frozen=True)
class InsertHead:
    """An INSERT that reads a stream, up to its query.

    Attributes:
        target: the table.
        columns: the columns that are listed.
        by_name: whether it has BY NAME.
        once: whether it has ONCE.
    """

    target: Name
    columns: Name
    by_name: bool
    once: bool


class InsertCursor(Cursor):
    """A cursor that reads INSERT up to its query."""

    def _insert_head(self) -> InsertHead:
        """Read what is behind INSERT, up to the query.

        Raises:
            UnsupportedError: it has a clause that only statements that end can have.
        """
        if (self._word(), self._word(1)) == ("WITH", "SCHEMA"):
            raise UnsupportedError(
                "INSERT WITH SCHEMA EVOLUTION cannot read a stream. Leave it out; for new columns of the source, set the table's "
                "option `schema-evolution` to 'add columns'.",
                self._position(),
            )
        if self._word() == "OVERWRITE":
            raise UnsupportedError(
                "INSERT OVERWRITE cannot read a stream: a stream has no end at which to overwrite. Use INSERT INTO, "
                "or CREATE OR REPLACE STREAMING TABLE.",
                self._position(),
            )
        self._expect("INTO")
        once = self._word() == "ONCE" and self._names_follow() and self._take("ONCE")
        self._take("TABLE")
        target = self._name()
        if self._word() == "PARTITION":
            raise self._problem("A flow writes to the whole table, so PARTITION is not allowed here")
        if (self._word(), self._word(1)) == ("WITH", "("):
            raise UnsupportedError(
                "INSERT INTO .. WITH (..) cannot read a stream: a flow has no options for the writer of its table. Leave it out, "
                "or set a property of the table.",
                self._position(),
            )
        by_name = self._take("BY", "NAME")
        if self._replaces():
            raise UnsupportedError(
                "INSERT INTO .. REPLACE cannot read a stream: it would replace the rows again at each micro-batch. Use INSERT "
                "INTO, or add GLOBAL WINDOW END OF STREAM to read what the stream holds now and end.",
                self._position(),
            )
        columns = self._column_list() if self._word() == "(" and not self._begins_query(self._at) else ()
        return InsertHead(target, columns, by_name, once)

    def _replaces(self) -> bool:
        """Return whether REPLACE follows, behind an alias of the table if there is one."""
        aliased = self._word() not in ("SELECT", "WITH", "FROM", "TABLE", "(")
        ahead = range(1 + aliased + (self._word() == "AS"))
        return any(self._word(at) == "REPLACE" and self._word(at + 1) in ("WHERE", "ON", "USING") for at in ahead)

    def _names_follow(self) -> bool:
        """Return whether the next word stands before a table, and is not one itself: `INTO once SELECT`, `INTO once BY NAME`."""
        token = self._peek(1)
        is_name = token is not None and token.kind in ("word", "quoted")
        return is_name and self._word(1) not in ("SELECT", "WITH", "FROM", "BY", "AS")

    def _insert_after_with(self, stop: int) -> int | None:
        """Find the INSERT after a WITH clause."""
        words = [token.upper for token in self._tokens]
        return next((at for at in range(self._at, stop) if begins_insert(words, at)), None) if self._word() == "WITH" else None

    def _first_of_query(self, start: int) -> int | None:
        """Return the index of the first token of an INSERT's query; None if there is none.

        Raises:
            UnsupportedError: the query has a name, for the condition of REPLACE ON.
        """
        before, self._at = self._at, start + 1
        self._take("WITH", "SCHEMA", "EVOLUTION")
        _ = self._take("INTO") or self._take("OVERWRITE")
        self._take("TABLE")
        if self._word() not in ("LOCAL", "DIRECTORY"):
            self._name()
        replaces = False
        while self._peek() and not (self._begins_query(self._at) and not (replaces and self._word(-1) in _OPERATORS)):
            replaces = replaces or self._word() == "REPLACE"
            if self._word() == "(":
                self._brackets()
            else:
                self._at += 1
        found = self._at
        if replaces and self._word() == "(":
            self._brackets()
            if (token := self._peek()) and (token.upper == "AS" or self._peek(1) is None):
                raise UnsupportedError(
                    "The query of INSERT INTO .. REPLACE ON cannot have a name if it has GLOBAL WINDOW END OF STREAM. Use "
                    "REPLACE USING (..), or MERGE INTO with a table that the query fills.",
                    self._position(),
                )
        self._at = before
        return found if found < len(self._tokens) else None

    def _begins_query(self, at: int) -> bool:
        """Return whether a query begins at a token, and not a column with the name of a keyword, as in `(from, to)`."""
        while at < len(self._tokens) and self._tokens[at].text == "(":
            at += 1
        if at + 1 >= len(self._tokens):
            return False
        word, following = self._tokens[at].upper, self._tokens[at + 1]
        if word == "SELECT":
            return following.text not in (",", ")", "=")
        is_name = following.kind in ("word", "quoted")
        return (word in ("FROM", "WITH") and is_name) or (word == "FROM" and following.text == "(")
