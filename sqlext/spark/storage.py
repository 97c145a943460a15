"""Storage: small files and folders on any file system that Hadoop supports.

Calls Hadoop, Spark's checkpoint file manager and Delta's log store through Py4J.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from sqlext.errors import NotFoundError, SetupError, TornFileError
from sqlext.private_files import create_file, make_private_folder, replace_file
from sqlext.spark.failures import causes_of, kinds_of, reason_of
from sqlext.spark.java import java_of, scala_object

COMMITTER = {
    # without this mark, which a cluster may have turned off, a complete micro-batch could not be distinguished from a torn one
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",  # saves one move of each file; nobody reads a folder without the mark
    # Hadoop writes a checksum file beside each local file, and starts a process for each of the two. Checkpoints cannot avoid it:
    # Spark's state store asks for the local file system by its class, and deletes files in another way than it writes them.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Options with which Spark writes files of which only a whole folder counts."""
_LOCAL = "file:"
_OF_ONE_DRIVER = "S3SingleDriverLogStore"  # Delta's own for S3: it only locks among the threads of a process
_CONDITIONAL_CREATE = "fs.option.create.conditional.overwrite"  # of Hadoop's Options.CreateFileOptionKeys


class _FileSystem:
    """The Hadoop file system of a path, with objects that are slow to create; paths below that path share it.

    Attributes:
        conf: the Hadoop configuration, a copy with about a thousand entries.
        fs: the Hadoop FileSystem.
    """

    def __init__(self, spark: SparkSession, path: Any) -> None:
        self._spark = spark
        self._path = path
        self.conf = spark._jsparkSession.sessionState().newHadoopConf()
        self.fs = path.getFileSystem(self.conf)

    @cached_property
    def has_conditional_create(self) -> bool:
        """Whether a file can be created on the condition that there is none yet (S3's If-None-Match)."""
        return bool(self.fs.hasPathCapability(self._path, _CONDITIONAL_CREATE))

    @property
    def log_store_class(self) -> str:
        """The name of the class of the log store."""
        made = self.log_store
        name = str(made.getClass().getSimpleName())
        return str(made.logStoreImpl().getClass().getSimpleName()) if name == "LogStoreAdaptor" else name

    @cached_property
    def log_store(self) -> Any:
        """The log store that Delta writes its commits with."""
        return java_of(self._spark).org.apache.spark.sql.delta.storage.LogStore.apply(self._spark._jsparkSession)


class HadoopPath:
    """A file or folder on any file system that Hadoop supports.

    Args:
        spark: the session whose Hadoop configuration opens it.
        location: a path or URI, taken literally and never as a glob or SQL.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        path = java_of(spark).org.apache.hadoop.fs.Path(location)
        self._system = _FileSystem(spark, path)
        self._fs = self._system.fs
        self.location = str(self._fs.makeQualified(path).toString())

    @cached_property
    def _path(self) -> Any:
        """Hadoop's Path; a local file is often written without it."""
        return java_of(self._spark).org.apache.hadoop.fs.Path(self.location)

    def child(self, *names: str) -> HadoopPath:
        """Return a path below this one, with the same file system and configuration."""
        return self.on_same_system("/".join((self.location, *names)))

    def on_same_system(self, location: str) -> HadoopPath:
        """Return another path, known to be on the same file system."""
        made = copy.copy(self)
        made.location = location
        made.__dict__.pop("_path", None)
        return made

    def exists(self) -> bool:
        """Return whether there is a file or folder at this path."""
        local = self._local
        return local.exists() if local is not None else bool(self._fs.exists(self._path))

    def make(self) -> None:
        """Create the folder and its parents.

        Raises:
            SetupError: it cannot be created, or is not a folder.
        """
        try:
            made = self._fs.mkdirs(self._path)
        except (Py4JJavaError, CapturedException) as error:
            raise SetupError(f"The folder {self.location} cannot be created: {reason_of(error)}.") from None
        if not made:
            raise SetupError(f"The folder {self.location} cannot be created.")

    def make_private(self) -> None:
        """Create the folder on this machine, accessible to its owner only; restrict an existing one.

        Whatever Spark puts into it is private too. On other file systems, this does nothing: their own permissions decide.

        Raises:
            SetupError: it cannot be created.
        """
        if self._local is None:
            return
        try:
            make_private_folder(self._local)
        except OSError as error:
            raise SetupError(f"The folder {self.location} cannot be created: {error.strerror}.") from None

    def close_to_others(self) -> None:
        """Restrict an existing folder on this machine to its owner; do nothing if it does not exist.

        Raises:
            SetupError: its mode cannot be changed.
        """
        if self._local is not None and self._local.is_dir():
            self.make_private()

    @property
    def is_local(self) -> bool:
        """Whether it is on a file system of this machine, or one that is mounted here."""
        return self._local is not None

    @property
    def replaces_at_once(self) -> bool:
        """Whether `write_text` replaces a file in one step; elsewhere there may be none for a moment."""
        return self.is_local or self._system.has_conditional_create

    @property
    def _local(self) -> Path | None:
        """The path on this machine; None if it is on another file system."""
        return Path(self.location.removeprefix(_LOCAL)) if self.location.startswith(_LOCAL) else None

    def names(self) -> list[str]:
        """Return the names of the folder's entries; none if it does not exist."""
        if not self.exists():
            return []
        return [str(status.getPath().getName()) for status in self._fs.listStatus(self._path)]

    def statuses(self) -> list[Any]:
        """Return Hadoop's FileStatus of each entry of the folder, or of the file; none if it does not exist."""
        return list(self._fs.listStatus(self._path)) if self.exists() else []

    def status(self) -> Any | None:
        """Return Hadoop's FileStatus; None if it does not exist."""
        try:
            return self._fs.getFileStatus(self._path)
        except Py4JJavaError as error:
            if "FileNotFound" in str(error.java_exception.getClass().getName()):
                return None
            raise

    def modified(self) -> float | None:
        """Return when the file was written last, in seconds since 1970 by the clock of the storage; None if it does not exist."""
        found = self.status()
        return None if found is None else int(found.getModificationTime()) / 1000

    def delete(self) -> None:
        """Delete the folder and its contents; do nothing if it does not exist."""
        self._fs.delete(self._path, True)

    def copy_to(self, place: HadoopPath) -> None:
        """Copy the file, or the folder with all that is in it, to a path where there is nothing yet.

        Raises:
            SetupError: a file cannot be read or written, or is gone.
        """
        copy_of = java_of(self._spark).org.apache.hadoop.fs.FileUtil.copy
        try:
            place._fs.mkdirs(place._path.getParent())
            copy_of(self._fs, self._path, place._fs, place._path, False, self._system.conf)
        except (Py4JJavaError, CapturedException) as error:
            raise SetupError(f"{self.location} cannot be copied to {place.location}: {reason_of(error)}.") from None

    def size(self) -> int:
        """Return the bytes of the file, or of all files in the folder."""
        return int(self._fs.getContentSummary(self._path).getLength())

    def delete_empty(self) -> None:
        """Delete the folder if it is empty."""
        with suppress(Py4JJavaError):  # Hadoop's file systems raise if it is not, each in its own way
            self._fs.delete(self._path, False)

    def write_text(self, text: str) -> None:
        """Write a small file atomically, replacing an existing one.

        A local file is renamed, an object put, any other file written as Spark does with those of its checkpoints: some storages
        delete the old one first; see `replaces_at_once`.

        Raises:
            SetupError: a local file cannot be written.
        """
        if (place := self._local) is not None:
            with self._local_errors():
                replace_file(place, text)
            return
        if self._system.has_conditional_create:
            self._put(self._fs.createFile(self._path).recursive().overwrite(True), text)
            return
        checkpointing = java_of(self._spark).org.apache.spark.sql.execution.streaming.checkpointing
        self._fs.mkdirs(self._path.getParent())
        stream = checkpointing.CheckpointFileManager.create(self._path, self._system.conf).createAtomic(self._path, True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    @contextmanager
    def _local_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SetupError(f"The file {self.location} cannot be written: {error.strerror}.") from None

    def create_text(self, text: str) -> bool:
        """Create a small file atomically unless it exists.

        A local file is made by a hard link, an object by a conditional write, any other file as Delta does with its commits.

        Returns:
            Whether this call wrote the file.

        Raises:
            SetupError: it cannot be written.
        """
        if (place := self._local) is not None:
            with self._local_errors():
                return create_file(place, text)
        if self._system.has_conditional_create:
            return self._put_text(text)
        try:
            self._fs.mkdirs(self._path.getParent())
        except (Py4JJavaError, CapturedException) as error:
            raise SetupError(f"The file {self.location} cannot be written: {reason_of(error)}.") from None
        try:
            lines = getattr(scala_object(self._spark, "scala.collection.StringOps"), "linesIterator$extension")(text)
            self._system.log_store.write(self._path, lines, False, self._system.conf)
        except (Py4JJavaError, CapturedException) as error:
            if isinstance(error, Py4JJavaError) and "FileAlreadyExists" in str(error.java_exception.getClass().getName()):
                return False
            raise SetupError(f"The file {self.location} cannot be written: {reason_of(error)}.") from None
        return True

    def refuse_double_creation(self) -> None:
        """Check that of all processes that create one file in this folder, one is told that it did; try it.

        Raises:
            SetupError: the store cannot promise that, or does not hold it.
        """
        if not self.is_local and not self._system.has_conditional_create and self._system.log_store_class == _OF_ONE_DRIVER:
            raise SetupError(
                f"The home {self.location} is on a store where two drivers could take one flow: Hadoop's client does not ask it "
                f"for conditional writes, and Delta's log store is {_OF_ONE_DRIVER}. Set `spark.hadoop.fs.s3a.create.conditional."
                "enabled` to true, or `spark.delta.logStore.s3a.impl` to one for several drivers, or choose another home."
            )
        file = self.child(f".probe-{uuid.uuid4().hex}")
        told = [file.create_text(text) for text in ("1", "2")]
        text = file.read_text().strip()
        file.delete()
        if told != [True, False] or text != "1":
            raise SetupError(
                f"The home {self.location} is on a store that lets two drivers create one file, so both could take one flow: it "
                "ignores conditional writes (If-None-Match). Choose a store that has them, or another home."
            )

    def _put_text(self, text: str) -> bool:
        """Create an object, which the store refuses if there is one. An answer may be lost, and the client asks again then.

        Returns:
            Whether this call wrote the object.

        Raises:
            SetupError: it cannot be written.
        """
        try:
            self._put(self._fs.createFile(self._path).recursive().overwrite(False).must(_CONDITIONAL_CREATE, True), text)
        except (Py4JJavaError, CapturedException) as error:
            kinds = {kind.rpartition(".")[2] for java in causes_of(error) for kind in kinds_of(java)}
            if not kinds & {"RemoteFileChangedException", "FileAlreadyExistsException"}:
                raise SetupError(f"The file {self.location} cannot be written: {reason_of(error)}.") from None
            return self._says(text)
        return True

    @staticmethod
    def _put(builder: Any, text: str) -> None:
        stream = builder.build()
        stream.write(bytearray(text.encode()))
        stream.close()

    def _says(self, text: str) -> bool:
        """Return whether the object is the one that this call has written after all."""
        try:
            return self.read_text() == text
        except NotFoundError:  # and somebody has deleted it since
            return False

    def _opened(self) -> Any:
        try:
            return self._fs.open(self._path)
        except (Py4JJavaError, CapturedException):
            if not self.exists():  # Java calls a file that it may not read not found, too
                raise NotFoundError(f"There is no file {self.location}.") from None
        return self._fs.open(self._path)  # somebody may have written it just now

    def read_text(self) -> str:
        """Read a small file.

        Raises:
            NotFoundError: it does not exist.
            TornFileError: it does not match the checksum that Hadoop keeps beside it, or is no text.
            SetupError: it cannot be read.
        """
        jvm = java_of(self._spark)
        try:
            stream = self._opened()
        except (Py4JJavaError, CapturedException) as error:
            raise SetupError(f"The file {self.location} cannot be opened: {reason_of(error)}.") from None
        try:
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        except (Py4JJavaError, CapturedException, UnicodeDecodeError) as error:
            kinds = (kind for java in causes_of(error) for kind in kinds_of(java))
            is_torn = isinstance(error, UnicodeDecodeError) or any(kind.endswith(".ChecksumException") for kind in kinds)
            unreadable = TornFileError if is_torn else SetupError
            raise unreadable(f"The file {self.location} cannot be read: {reason_of(error)}.") from None
        finally:
            stream.close()
