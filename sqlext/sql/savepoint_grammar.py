"""The grammar of savepoints: SAVEPOINT FLOW f AS s, RESTORE FLOW f TO SAVEPOINT s, DROP SAVEPOINT s ON FLOW f."""

from __future__ import annotations

from sqlext.sql.cursor import Cursor
from sqlext.sql.savepoint_statements import DropSavepoint, MakeSavepoint, RestoreFlow, ShowSavepoints


class SavepointCursor(Cursor):
    """A cursor that reads statements about savepoints."""

    def _make_savepoint(self) -> MakeSavepoint:
        """Read `FLOW f [AS name]`, after SAVEPOINT."""
        self._expect("FLOW")
        flow = self._name()
        position = self._position()
        return self._end(MakeSavepoint(flow, self._identifier() if self._take("AS") else "", position))

    def _restore(self) -> RestoreFlow:
        """Read `FLOW f TO [SAVEPOINT] name`, after RESTORE."""
        self._expect("FLOW")
        flow = self._name()
        self._expect("TO")
        if self._peek(1) is not None:  # or the savepoint itself is called so
            self._take("SAVEPOINT")
        position = self._position()
        return self._end(RestoreFlow(flow, self._identifier(), position))

    def _drop_savepoint(self) -> DropSavepoint:
        """Read `[IF EXISTS] name ON FLOW f`, after DROP SAVEPOINT."""
        exists = self._take("IF", "EXISTS")
        position = self._position()
        name = self._identifier()
        self._expect("ON")
        self._expect("FLOW")
        return self._end(DropSavepoint(self._name(), name, exists, position))

    def _show_savepoints(self) -> ShowSavepoints:
        """Read `[OF f]`, after SHOW SAVEPOINTS."""
        return self._end(ShowSavepoints(self._name() if self._take("OF") else ()))
