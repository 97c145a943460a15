"""What a view's own table says of it: the newest refresh, and whether others have changed the table since."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from sqlext.execution.delta.delta_log import actions, info_of
from sqlext.execution.delta.foreign_commits import moves_columns
from sqlext.plan.view_spec import RefreshReport, SourceVersion

Commit = Sequence[Mapping[str, Any]]
"""The actions of a commit."""

_FORMAT = 3
_SECONDS = ("seconds", "full_seconds", "incremental_seconds")


@dataclass(frozen=True)
class ViewState:
    """The state of a view's table in its newest version.

    Attributes:
        version: that version.
        last: the newest refresh; None: there is none, or the log no longer has it.
        foreign: the newest change by others since, such as `version 7 (DELETE)`; empty: none.
    """

    version: int
    last: RefreshReport | None
    foreign: str = ""


def state_of(spark: SparkSession, location: str, view_id: str, version: int) -> ViewState:
    """Return the state of a view's table.

    Args:
        spark: the session.
        location: the table's folder.
        view_id: the view.
        version: the newest version of the table.
    """
    return state_in(lambda at: actions(spark, location, at), view_id, version, partial(moves_columns, spark, location))


def state_in(
    commit_at: Callable[[int], Commit | None],
    view_id: str,
    version: int,
    moves: Callable[[int, Commit], bool] = lambda at, commit: False,
) -> ViewState:
    """Return the state of a view's table from its commits, newest first, up to the last refresh.

    Args:
        commit_at: returns the actions of a version's commit; None: the log no longer has it.
        view_id: the view.
        version: the newest version of the table.
        moves: returns whether a version's commit has given names to other columns; see `moves_columns`.
    """
    foreign = ""
    for at in range(version, -1, -1):
        commit = commit_at(at)
        if commit is None:
            break
        last = report_in(info_of(commit), view_id, at)
        if last is not None:
            return ViewState(version, last, foreign)
        if not foreign and (changes_rows(commit) or moves(at, commit)):
            foreign = f"version {at} ({info_of(commit).get('operation', 'a commit')})"
    return ViewState(version, None, foreign)


def metadata_of(view_id: str, report: RefreshReport) -> str:
    """Return the userMetadata of a refresh's commit."""
    fields = asdict(report)
    del fields["version"]  # not known before the commit, and the log has it
    fields["refresh"] = fields.pop("number")
    fields |= {name: round(fields[name], 3) for name in _SECONDS}
    return json.dumps({"sqlext": {"view": view_id, "format": _FORMAT, **fields}})


def report_in(info: Mapping[str, Any], view_id: str, version: int) -> RefreshReport | None:
    """Return the report of the refresh that made a commit; None if the commit is no refresh of this view.

    Args:
        info: the commit's commitInfo.
        view_id: the view.
        version: the version of the table that the commit made.
    """
    try:
        said = json.loads(str(info.get("userMetadata")))["sqlext"]
        if said["view"] != view_id or said["format"] != _FORMAT:
            return None
        return RefreshReport(
            version=version,
            number=int(said["refresh"]),
            done=str(said["done"]),
            because=str(said["because"]),
            sources={name: SourceVersion(**each) for name, each in said["sources"].items()},
            rows_in=int(said["rows_in"]),
            rows_deleted=int(said["rows_deleted"]),
            rows_inserted=int(said["rows_inserted"]),
            seconds=float(said["seconds"]),
            query=str(said["query"]),
            full_seconds=float(said["full_seconds"]),
            incremental_seconds=float(said["incremental_seconds"]),
            partials=int(said["partials"]),
            read={name: int(rows) for name, rows in said["read"].items()},
            cut={name: SourceVersion(**each) for name, each in said["cut"].items()},
            mixed=tuple(said["mixed"]),
            violations={name: int(rows) for name, rows in said.get("violations", {}).items()},
        )
    except (ValueError, KeyError, TypeError):
        return None


def changes_rows(commit: Commit) -> bool:
    """Return whether a commit changes the rows of its table, and not only their files."""
    changes = [each.get("add") or each.get("remove") for each in commit]
    return any(isinstance(change, dict) and change.get("dataChange") for change in changes)
