"""Which errors of Spark's send a refresh the way in full: the changes cannot be computed, and the query perhaps can."""

from __future__ import annotations

from sqlext.execution.delta.changes import MIXED_VARIANT
from sqlext.spark import failures


def why_in_full(error: BaseException) -> str:
    """Return why an error of Spark's keeps a refresh from being incremental, but not from being full; empty: it does not."""
    if failures.lacks_file(error):
        return "files of the sources' old versions are gone"
    if any(name.startswith("FAILED_READ_FILE") for name in failures.conditions_of(error)):
        return "a file of the sources cannot be read"
    if (failures.parameters_of(error, ("USER_RAISED_EXCEPTION",)) or {}).get("errorMessage") == MIXED_VARIANT:
        return MIXED_VARIANT
    return "Spark cannot plan the changes of this query" if failures.cannot_be_planned(error) else ""
