"""Deletion vectors to which one commit has added more marks than Delta can read by themselves.

Of a file whose deletion vector was replaced, Delta reads the rows that only one of the two vectors marks. It passes that
difference to the scan as a Java string, which holds at most 65,535 bytes, and fails when it is longer (delta-io/delta#5662):
some 25,000 rows here and there in a file are enough. Each of the two vectors alone may have any size. So such commits are read as
two: the first deletes all rows that the later vector marks, the second inserts all that the earlier one marked. Rows that both
mark are in both, and cancel out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlext.execution.delta.delta_log import data_files, info_of, marks_of

Actions = Sequence[Mapping[str, Any]]
"""Of one commit, as Delta's log has them."""

MOST_MARKS = 16_384
"""So many are surely not too long: two bytes for each, and eight for each 65,536 rows of the file."""


def apart(commits: Mapping[int, Actions], is_from_files: bool) -> list[dict[int, Actions]]:
    """Return commits as two sequences of commits, whose changes together are theirs.

    Args:
        commits: the actions of each version.
        is_from_files: whether the changes are read from the files that were added and removed, even if a commit has a feed of its
            changes.

    Returns:
        The actions of each version, twice; nothing if Delta can read the commits as they are.
    """
    found = {version: _too_long(actions, is_from_files) for version, actions in commits.items()}
    if not any(found.values()):
        return []
    deleted: dict[int, Actions] = {}
    inserted: dict[int, Actions] = {}
    for version, actions in commits.items():
        paths = found[version]
        deleted[version] = [_without_vector(each, "remove") if _path_of(each) in paths else each for each in actions]
        kept = [each for each in actions if "commitInfo" in each or _path_of(each) in paths]
        inserted[version] = [_without_vector(each, "add") for each in kept]
    return [deleted, inserted]


def _too_long(actions: Actions, is_from_files: bool) -> set[str]:
    """Return the paths of the files whose vectors differ by too many marks, as far as their numbers tell."""
    if not is_from_files and any("cdc" in each for each in actions):
        return set()  # no other files of this commit are read
    is_restored = info_of(actions).get("operation") == "RESTORE"
    removed, added = (data_files(actions, kind) for kind in ("remove", "add"))
    found = set()
    for path in removed.keys() & added.keys():
        before, after = marks_of(removed[path]), marks_of(added[path])
        if before is None or after is None:
            continue  # Delta reads the only vector as it is
        # a restored vector may have marks that the one before had not; else marks are only added
        differing = max(before, after) if is_restored else abs(after - before)
        if differing > MOST_MARKS:
            found.add(path)
    return found


def _path_of(action: Mapping[str, Any]) -> str:
    """Return the path of the file that an action adds or removes."""
    return str((action.get("add") or action.get("remove") or {}).get("path", ""))


def _without_vector(action: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return an action of a kind without its deletion vector, others as they are."""
    if kind not in action:
        return action
    return {kind: {key: value for key, value in action[kind].items() if key != "deletionVector"}}
