"""Access to small files: local ones are read with Python alone, at no cost to Spark and Java."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from sqlext.errors import NotFoundError, SetupError, TornFileError
from sqlext.execution.coordination.event_log import Folder
from sqlext.spark.storage import HadoopPath


class LocalFolder:
    """A folder or file on this machine, for reading only.

    Args:
        location: the path, or a `file:` URI.

    Attributes:
        path: the path.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        # Hadoop writes such a URI without escapes: a `%` in it is part of the name
        self.path = Path("/" + location.removeprefix("file:").lstrip("/")) if location.startswith("file:") else Path(location)

    def child(self, *names: str) -> LocalFolder:
        return LocalFolder(str(self.path.joinpath(*names)))

    def exists(self) -> bool:
        return self.path.exists()

    def read_text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise NotFoundError(f"There is no file {self.location}.") from None
        except (OSError, UnicodeDecodeError) as error:
            unreadable = TornFileError if isinstance(error, UnicodeDecodeError) else SetupError
            raise unreadable(f"The file {self.location} cannot be read: {error}.") from None

    def modified(self) -> float | None:
        return self.path.stat().st_mtime if self.path.exists() else None

    def names(self) -> list[str]:
        return [each.name for each in self.path.iterdir()] if self.path.is_dir() else []

    def create_text(self, text: str) -> bool:
        raise self._is_read_only

    def write_text(self, text: str) -> None:
        raise self._is_read_only

    def delete(self) -> None:
        raise self._is_read_only

    @property
    def _is_read_only(self) -> SetupError:
        return SetupError(f"The file {self.location} is read-only here.")


def folder_at(location: str, spark: SparkSession | None) -> Folder | None:
    """Return the folder at a location; None if it is not on this machine and there is no Spark to open it."""
    if location.startswith("file:") or "://" not in location:
        return LocalFolder(location)
    return HadoopPath(spark, location) if spark is not None else None
