"""Which errors of Spark's send a refresh the way in full: the changes cannot be computed, and the query perhaps can."""

from __future__ import annotations

from sqlext.execution.delta.changes import MIXED_VARIANT
from sqlext.spark import failures

_OF_VALUES = ("22", "38", "39", "P0001")
"""SQLSTATEs of errors about a value: the rules pair rows of an old version with rows of a new one, and take differences of sums,
which the query itself never does. Data exceptions, functions of the user, raise_error."""
_UNTOLD = "DELTA_REMOVE_FILE_CDC_MISSING_EXTENDED_METADATA"
"""Delta's condition, when it plans the scan of changes: a writer has left out `extendedFileMetadata`, as its protocol allows."""


def why_in_full(error: BaseException) -> str:
    """Return why an error of Spark's keeps a refresh from being incremental, but not from being full; empty: it does not."""
    if failures.lacks_file(error):
        return "files of the sources' old versions are gone"
    conditions = failures.conditions_of(error)
    if any(name.startswith("FAILED_READ_FILE") for name in conditions):
        return "a file of the sources cannot be read"
    if _UNTOLD in conditions:
        return "the changes cannot be read: a writer of a source removed files and said nothing else of them"
    if (failures.parameters_of(error, ("USER_RAISED_EXCEPTION",)) or {}).get("errorMessage") == MIXED_VARIANT:
        return MIXED_VARIANT
    if any(state.startswith(_OF_VALUES) for state in failures.sql_states_of(error)):
        return "a value cannot be computed of the changes alone"
    return "Spark cannot plan the changes of this query" if failures.cannot_be_planned(error) else ""
