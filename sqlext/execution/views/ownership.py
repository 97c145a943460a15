"""Which tables are those of materialized views."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sqlext.errors import NameTakenError, UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.flows.registry import without_case
from sqlext.execution.views.registry import Records
from sqlext.plan.lineage import shown
from sqlext.plan.view_spec import VIEW_PROPERTY, ViewSpec


def maker_of(session: SparkSession, name: tuple[str, ...]) -> str | None:
    """Return the id of the materialized view that made a table; None for any other table, or a view."""
    try:
        return target.describe(session, name).properties.get(VIEW_PROPERTY)
    except UnsupportedError:
        return None


def is_table_of(session: SparkSession, spec: ViewSpec) -> bool:
    """Return whether the table of a view's name is still the one that it made."""
    return target.is_made_by(session, spec.name, VIEW_PROPERTY, spec.id, spec.table_id)


def refuse_as_target(session: SparkSession, records: Records, name: tuple[str, ...]) -> None:
    """Refuse to write to the table of a materialized view, which only refreshes may change.

    Args:
        session: of the client.
        records: the views, with those that are being created.
        name: the table that is to be written, qualified; a path, too.

    Raises:
        NameTakenError: it is a view's.
    """
    spec = _view_of(session, records, name)
    if spec is not None:
        raise NameTakenError(
            f"{shown(name)} is the table of the materialized view {shown(spec.name)}, and only its refreshes write to it. Choose "
            "another table, or DROP MATERIALIZED VIEW it first."
        )


def _view_of(session: SparkSession, records: Records, name: tuple[str, ...]) -> ViewSpec | None:
    """Return the view whose table has a name, or lies in a folder; None if there is none."""
    specs = [record.spec for record in records.values()]
    named = next((spec for spec in specs if without_case(spec.name) == without_case(name)), None)
    if named is not None or not specs or not target.exists(session, name):
        return named
    try:
        found = target.describe(session, name).table_id
    except UnsupportedError:
        return None
    return next((spec for spec in specs if spec.table_id == found), None)
