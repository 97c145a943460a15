"""Storage: small files and folders on any file system that Hadoop knows.

This is a seam: it calls Hadoop, Spark's checkpoint files and Delta's log store by Py4J.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from sqlext.errors import NotFoundError, SetupError
from sqlext.java import java_of, scala_seq
from sqlext.jvm import reason_of


class HadoopPath:
    """A folder on any file system that Hadoop knows.

    Args:
        spark: whose Hadoop configuration opens it.
        location: a path or URI; taken as it is, never as a glob or SQL.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._path = java_of(spark).org.apache.hadoop.fs.Path(location)
        self._fs = self._path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        self.location = str(self._fs.makeQualified(self._path).toString())

    def child(self, *names: str) -> HadoopPath:
        return HadoopPath(self._spark, "/".join((self.location, *names)))

    def exists(self) -> bool:
        return bool(self._fs.exists(self._path))

    def make(self) -> None:
        """Create the folder and those above it.

        Raises:
            SetupError: it cannot be created or is no folder.
        """
        try:
            made = self._fs.mkdirs(self._path)
        except (Py4JJavaError, CapturedException) as error:
            raise SetupError(f"The folder {self.location} cannot be created: {reason_of(error)}.") from None
        if not made:
            raise SetupError(f"The folder {self.location} cannot be created.")

    def names(self) -> list[str]:
        """Names of what lies in the folder; nothing when it does not exist."""
        if not self.exists():
            return []
        return [str(status.getPath().getName()) for status in self._fs.listStatus(self._path)]

    def statuses(self) -> list[Any]:
        """Hadoop's FileStatus of what lies in the folder, or of the file; nothing when it does not exist."""
        return list(self._fs.listStatus(self._path)) if self.exists() else []

    def delete(self) -> None:
        """Delete the folder and all in it; one that is not there is fine."""
        self._fs.delete(self._path, True)

    def write_text(self, text: str) -> None:
        """Write a small file over what was there, whole or not at all, as Spark does with its checkpoints' files."""
        checkpointing = java_of(self._spark).org.apache.spark.sql.execution.streaming.checkpointing
        conf = self._spark._jsparkSession.sessionState().newHadoopConf()
        self._fs.mkdirs(self._path.getParent())
        stream = checkpointing.CheckpointFileManager.create(self._path, conf).createAtomic(self._path, True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def create_text(self, text: str) -> bool:
        """Write a small file if none is there, whole or not at all, as Delta does with its commits on this file system.

        Returns:
            Whether it was written.

        Raises:
            SetupError: it cannot be written.
        """
        jvm = java_of(self._spark)
        java_session = self._spark._jsparkSession
        store = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(java_session)
        try:
            self._fs.mkdirs(self._path.getParent())
        except (Py4JJavaError, CapturedException) as error:
            raise SetupError(f"The file {self.location} cannot be written: {reason_of(error)}.") from None
        try:
            lines = scala_seq(self._spark, text.splitlines()).iterator()
            store.write(self._path, lines, False, java_session.sessionState().newHadoopConf())
        except (Py4JJavaError, CapturedException) as error:
            if isinstance(error, Py4JJavaError) and "FileAlreadyExists" in str(error.java_exception.getClass().getName()):
                return False
            raise SetupError(f"The file {self.location} cannot be written: {reason_of(error)}.") from None
        return True

    def read_text(self) -> str:
        """Read a small file.

        Raises:
            NotFoundError: it is not there.
            SetupError: it is torn, by the checksum that Hadoop keeps beside it, or cannot be read.
        """
        jvm = java_of(self._spark)
        try:
            stream = self._fs.open(self._path)
        except (Py4JJavaError, CapturedException):
            raise NotFoundError(f"There is no file {self.location}.") from None
        try:
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        except (Py4JJavaError, CapturedException, UnicodeDecodeError) as error:
            raise SetupError(f"The file {self.location} cannot be read: {reason_of(error)}.") from None
        finally:
            stream.close()
