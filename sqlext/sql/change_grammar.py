"""The grammar of AUTO CDC; its clauses are those of Spark's declarative pipelines, and come in any order."""

from __future__ import annotations

from typing import Any

from sqlext.errors import Position, SyntaxProblem, UnsupportedError, did_you_mean
from sqlext.plan.change_capture import ChangeCapture, ColumnChoice, Fragment
from sqlext.sql.cursor import Cursor

_CLAUSES = {
    ("IGNORE", "NULL", "UPDATES"): "ignores_nulls",
    ("APPLY", "AS", "DELETE", "WHEN"): "delete_when",
    ("APPLY", "AS", "TRUNCATE", "WHEN"): "truncate_when",
    ("SEQUENCE", "BY"): "sequence",
    ("COLUMNS",): "columns",
    ("STORED", "AS", "SCD", "TYPE"): "keeps_history",
    ("TRACK", "HISTORY", "ON"): "tracked",
}
"""The words of each clause, and the attribute of ChangeCapture that it gives."""
_BEGINNINGS = [words[:2] for words in _CLAUSES]


class ChangeCursor(Cursor):
    """A cursor that reads `AUTO CDC .. FROM STREAM s KEYS (id) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY lsn ..`."""

    def _auto_cdc_words(self) -> Position:
        """Read AUTO CDC, and return the place of the two words."""
        start = self._position()
        self._expect("AUTO")
        self._expect("CDC")
        return Position(start.line, start.column, start.start, self._tokens[self._at - 1].stop)

    def _auto_cdc(self, position: Position) -> ChangeCapture:
        """Read what follows AUTO CDC [INTO t], to the end of the statement."""
        if self._word() != "FROM":
            raise self._problem("Expected FROM STREAM and a table of changes")
        if self._word(1) != "STREAM":
            self._at += 1
            raise self._problem("AUTO CDC reads a stream of changes: expected STREAM and a table")
        source = self._part("FROM", [("KEYS", "(")])  # a table may be called keys
        if not self._take("KEYS"):
            raise self._problem("Expected KEYS ( and the columns that identify a row")
        found: dict[str, Any] = {"keys": self._names()}
        while self._peek() is not None:
            place = self._position()
            words = next((words for words in _CLAUSES if self._take(*words)), None)
            if words is None:
                known = [" ".join(each) for each in _CLAUSES]
                word = next((each for each in known if each.startswith(f"{self._word()} ")), self._word())
                raise self._problem(f"Expected one of {', '.join(known)}", did_you_mean(word, known))
            if _CLAUSES[words] in found:
                raise SyntaxProblem(f"The clause {' '.join(words)} is given twice.", place)
            found[_CLAUSES[words]] = self._value(_CLAUSES[words])
        if "sequence" not in found:
            raise self._problem("AUTO CDC needs SEQUENCE BY, the order of the changes of one key")
        capture = ChangeCapture(source=source, position=position, **found)
        self._check_type(capture, "tracked" in found)
        return capture

    def _value(self, attribute: str) -> Any:
        """Read what follows the words of a clause."""
        if attribute == "ignores_nulls":
            return True
        if attribute in ("columns", "tracked"):
            return self._choice()
        if attribute == "keeps_history":
            if self._word() not in ("1", "2"):
                raise self._problem("Expected 1, the newest row of each key, or 2, its history")
            return not self._take("1") and self._take("2")
        return self._part("an expression", _BEGINNINGS)

    def _check_type(self, capture: ChangeCapture, is_tracked: bool) -> None:
        if is_tracked and not capture.keeps_history:
            raise SyntaxProblem("TRACK HISTORY ON needs STORED AS SCD TYPE 2: without it, no history is kept.", capture.position)
        if capture.truncate_when is not None and capture.keeps_history:
            raise UnsupportedError(
                "APPLY AS TRUNCATE WHEN would end the history of all keys at once, which SCD TYPE 2 does not support. Use SCD "
                "TYPE 1, or end each key by APPLY AS DELETE WHEN.",
                capture.truncate_when.position,
            )

    def _choice(self) -> ColumnChoice:
        """Read `(a, b)`, `a, b`, `*` or `* EXCEPT (a, b)`."""
        if not self._take("*"):
            return ColumnChoice(self._names(), is_except=False)
        return ColumnChoice(self._names() if self._take("EXCEPT") else ())

    def _names(self) -> tuple[Fragment, ...]:
        is_bracketed = self._take("(")
        names = [self._column()]
        while self._take(","):
            names.append(self._column())
        if is_bracketed:
            self._expect(")")
        return tuple(names)

    def _column(self) -> Fragment:
        place = self._position()
        return Fragment(self._identifier(), place)

    def _part(self, what: str, ends: list[tuple[str, ...]]) -> Fragment:
        """Read up to words that begin a clause, outside of brackets."""
        start, depth = self._at, 0
        while self._peek() is not None and (depth or not any(self._are_next(words) for words in ends)):
            depth += (self._word() == "(") - (self._word() == ")")
            self._at += 1
        if self._at == start:
            raise self._problem(f"Expected {what}")
        first, last = self._tokens[start], self._tokens[self._at - 1]
        return Fragment(self._text[first.start : last.stop], Position.of(self._text, first.start, last.stop))

    def _are_next(self, words: tuple[str, ...]) -> bool:
        return all(self._word(ahead) == word for ahead, word in enumerate(words))
