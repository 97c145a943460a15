"""The home of flows and jobs: its folders, accessible to their owner only, and the storage below it."""

from __future__ import annotations

from sqlext.spark.storage import HadoopPath

_MADE = ("flows", "hosts")
_FOLDERS = (*_MADE, "jobs", "live", "registry", "views")
"""Each of these is private, since the home itself may be a folder with other uses, which stays as it is."""


def make_home(home: HadoopPath) -> None:
    """Create the home, and restrict it to its owner.

    Raises:
        SetupError: it cannot be created, or two drivers could take one flow there.
    """
    home.refuse_double_creation()
    for folder in (home, *map(home.child, _MADE)):
        folder.make_private()
    close_home(home)


def close_home(home: HadoopPath) -> None:
    """Restrict an existing home to its owner: an older version, or somebody, may have created it readable by all.

    Raises:
        SetupError: its modes cannot be changed.
    """
    for folder in (home, *map(home.child, _FOLDERS)):
        folder.close_to_others()
