"""The home of flows and jobs on this machine: its folders, which their owner alone may look into."""

from __future__ import annotations

from sqlext.spark.storage import HadoopPath

_MADE = ("flows", "hosts")
_FOLDERS = (*_MADE, "jobs", "live", "registry")
"""Private each, for a home may be a folder that others use as well, which stays as it is."""


def make_home(home: HadoopPath) -> None:
    """Create the home, and close it to others.

    Raises:
        SetupError: it cannot be created.
    """
    for folder in (home, *map(home.child, _MADE)):
        folder.make_private()
    close_home(home)


def close_home(home: HadoopPath) -> None:
    """Close a home to others that is there already: an older version, or somebody, may have made it for all to read.

    Raises:
        SetupError: its modes cannot be changed.
    """
    for folder in (home, *map(home.child, _FOLDERS)):
        folder.close_to_others()
