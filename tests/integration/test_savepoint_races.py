"""What others do while a savepoint is made, or a flow set back to one: nothing of it is lost, or the statement is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sqlext.execution.delta import table_copy
from sqlext.execution.flows.replay import Replay, opened
from sqlext.execution.flows.savepoints import SavepointStore
from sqlext.moments import Moment
from sqlext.spark.jvm import clone_session
from sqlext.spark.storage import HadoopPath
from sqlext.testing import listened
from tests.integration.test_savepoints import create, refused, savepoints
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")


def test_rows_that_others_write_while_a_flow_is_set_back_are_not_lost(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE theirs (k STRING, w INT) USING delta")
    sql("CREATE FLOW f AS INSERT INTO theirs SELECT k, v FROM STREAM ev")
    sql("WAIT FLOW f")
    for name, at in {"good": Moment.RESTORE_PREPARED, "better": Moment.RESTORE_DECIDED}.items():
        sql(f"SAVEPOINT FLOW f AS {name}")

        def write(moment: Moment, _: str, at: Moment = at) -> None:
            if moment is at:
                sql("INSERT INTO theirs VALUES ('mine', 1)")

        with listened(write):
            refused(sql, f"RESTORE FLOW f TO {name}", r"others have changed rows .* last in version \d+ \(WRITE\)")
        assert (sql.shown("f").status == "RUNNING") is (at is Moment.RESTORE_PREPARED)
    assert sql("SELECT count(*) AS n FROM theirs WHERE k = 'mine'")[0].n == 2


def test_a_savepoint_that_is_being_made_is_nobodys_leftover(sql: Workshop) -> None:
    """Its maker's id is the text of a file, which ends with a line break where a log store has written it."""
    sql.source()
    create(sql, "at_once", "t")
    sql("WAIT FLOW t")
    store, seen = SavepointStore(HadoopPath(sql.spark, sql.home("t").as_uri())), list[str]()
    place = sql.home("t") / "savepoints" / "begun"
    place.mkdir(parents=True)
    (place / "made-by").write_text("somebody\n")

    def is_working(host: str) -> bool:
        seen.append(host)
        return True

    store.clear_leftovers(is_working)
    assert (seen, place.exists()) == (["somebody"], True)
    store.clear_leftovers(lambda _: False)
    assert not place.exists()


def test_a_replay_of_another_process_ends_a_savepoint(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would be in neither copy; in this process it waits for its turn."""
    sql.source()
    sql("CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (v > 1) ON VIOLATION QUARANTINE INTO bad) AS SELECT * FROM STREAM ev")
    sql("WAIT FLOW t")
    sql("UPDATE bad SET v = 100")
    copy, flow = table_copy.copy_rows, sql.flow("t")

    def replayed(*given: Any) -> None:
        copy(*given)
        session = clone_session(sql.spark)
        Replay(session, opened(session, ("spark_catalog", "default", "bad")), flow.spec).run(None, {})

    with monkeypatch.context() as patch:
        patch.setattr(table_copy, "copy_rows", replayed)
        refused(sql, "SAVEPOINT FLOW t AS good", "were replayed meanwhile by another process")
    assert savepoints(sql) == []
    assert len(sql.batch("SELECT * FROM t")) == 3
