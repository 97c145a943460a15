"""Tables that materialized views have left: a crash came between the end of a view's record and that of its table."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.views.ownership import maker_of
from sqlext.execution.views.registry import ViewRegistry, find
from sqlext.plan.lineage import shown
from sqlext.quoting import quote_parts


def drop_left(session: SparkSession, registry: ViewRegistry, name: tuple[str, ...], if_exists: bool) -> str:
    """Drop what a view that is gone has left.

    Args:
        session: of the client.
        registry: the views that there are.
        name: the table, qualified.
        if_exists: whether it is no error that there is none.

    Raises:
        NotFoundError: there is no table of that name.
        NameTakenError: it may be a view's that another version of sqlext has recorded.
        UnsupportedError: it is no view's, or the copy of one.
    """
    records = registry.read()
    registry.refuse_unread(name)
    if not target.exists(session, name):
        if if_exists:
            return f"there is no materialized view {shown(name)}"
        find(records, name)  # raises
    maker = maker_of(session, name)
    if maker is None:
        raise UnsupportedError(f"{shown(name)} is no materialized view. DROP TABLE it, or DROP VIEW if it is a view.")
    if maker in records:  # a copy has the properties of its source, and so has a renamed table
        made = records[maker]
        what = "is just being created" if made.is_reserved else f"is a copy of the materialized view {shown(made.spec.name)}"
        raise UnsupportedError(f"{shown(name)} {what}. DROP TABLE drops a copy.")
    session.sql(f"DROP TABLE {quote_parts(name)}")
    return f"materialized view {shown(name)} dropped"
