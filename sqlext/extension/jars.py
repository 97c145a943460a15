"""Java, and the JARs of Delta, Kafka and S3, all in place before the JVM starts.

If Delta is loaded later (`spark.jars`, `spark.jars.packages`), it disappears with the first Thrift session that closes. So its
JARs belong on `spark.driver.extraClassPath`. They are fetched once per user, with the Ivy that pyspark ships, and checked against
digests that ship with sqlext: when they are fetched, and at each start.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlext.clock import Deadline
from sqlext.errors import SetupError
from sqlext.extension.jar_digests import are_sound, check, inventory

_LOG = logging.getLogger(__name__)

_OLDEST_JAVA = 17  # what Spark 4 is built for
_JAVA_DEADLINE = 30.0  # seconds for `java -version`, which takes well under one
_FETCH_DEADLINE = 600.0  # seconds for all of Ivy's work
_MARKER = "complete"  # written last into a folder of JARs: a line with digest and name for each

# JARs that Delta needs and Spark does not ship. `delta-spark` and `delta-storage` serve all ordinary work; the kernel serves
# `CHANGES` clauses and Delta's v2 connector, if a user turns them on. `delta-kernel-unitycatalog` is left out: it is useful
# only with Unity Catalog's own client, and users who add that client add Delta as well.
_BESIDE_DELTA_SPARK = ("delta-storage", "delta-kernel-api", "delta-kernel-defaults")

# JARs that Spark's Kafka source needs and Spark does not ship, in the versions that its build for 4.2 names. `spark-avro` is
# for from_avro and read_files; 4.1.1 is its newest version on the mirrors known to us, and works with Spark 4.2.
_KAFKA_CLIENTS, _POOL, _AVRO = "3.9.2", "2.13.1", "4.1.1"

# What the `hadoop-aws` of Spark 4.2's Hadoop is built with; the SDK is one JAR of 690 MB.
_AWS_SDK, _S3_READER = "2.35.4", "1.3.1"

_JAVA_VERSION = re.compile(r'^\S+ version "(?:1\.(?=\d))?(\d+)', re.MULTILINE)
_DOWNLOADING = re.compile(r"^downloading \S*/(\S+\.jar) ")
_UNRESOLVED = re.compile(r"^\s*:: [\w.]+#([^;\s]+);.*not found", re.MULTILINE)
_REASON = re.compile(  # Ivy's messages for: no answer (two), a failed download, an unreadable settings file
    r'access error at url \S+ \((.+)\)$|(Host \S+ not found)|\[FAILED +\] \S+: (.+?)(?: \(\d+ms\))?$|in thread "main" (.+?)\.?$',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Artifact:
    """A JAR in a Maven repository."""

    group: str
    name: str
    version: str

    @property
    def file(self) -> str:
        """The name of the JAR's file."""
        return f"{self.name}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


def check_java() -> Path:
    """Return the `java` that Spark's launcher will start: that of `JAVA_HOME`, else the first on `PATH`.

    Raises:
        SetupError: there is none, it does not run, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    remedy = f"Install Java {_OLDEST_JAVA} or newer and set JAVA_HOME to its folder."
    if found is None:
        where = f"JAVA_HOME is `{home}`, but there is no program `bin/java` in it." if home else "Java was not found on PATH."
        raise SetupError(f"{where} {remedy}")
    try:
        ran = subprocess.run(  # noqa: S603  # the very program that Spark would start
            [found, "-version"], capture_output=True, text=True, errors="replace", timeout=_JAVA_DEADLINE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"`{found} -version` failed: {error}. {remedy}") from None
    said = ran.stderr + ran.stdout
    version = _JAVA_VERSION.search(said)
    if ran.returncode != 0 or version is None:
        said = " ".join(said.split())[:200] or f"exit code {ran.returncode}"
        raise SetupError(f"`{found} -version` printed no version of Java: {said}. {remedy}")
    if int(version[1]) < _OLDEST_JAVA:
        raise SetupError(f"`{found}` is Java {version[1]}, but Spark needs {_OLDEST_JAVA} or newer. {remedy}")
    return Path(found).absolute()


def delta_on_class_path(extra_class_path: str | None = None) -> bool:
    """Return whether Delta is already present: on this class path, or among Spark's own JARs.

    Args:
        extra_class_path: the user's `spark.driver.extraClassPath`; `folder/*` stands for the folder's JARs.

    Raises:
        SetupError: Spark's folder of JARs is missing.
    """
    entries = (extra_class_path or "").split(os.pathsep)
    jars = [entry for entry in map(Path, entries) if entry.name != "*" and entry.is_file()]
    folders = [entry.parent for entry in map(Path, entries) if entry.name == "*"]
    for folder in [*folders, _spark_jars()]:
        jars += folder.glob("*.jar")
    return any(re.search(r"delta-spark_.*\.jar$", jar.name) for jar in jars)


def delta_given_by(options: Mapping[str, Any]) -> str | None:
    """Return what brings Delta's JARs with it among Spark's settings, or its own JARs, for people; None: nothing does."""
    if delta_on_class_path(str(options.get("spark.driver.extraClassPath", ""))):
        return "the class path"
    return "`spark.jars.packages`" if "delta-spark" in str(options.get("spark.jars.packages", "")) else None


def delta_class_path(progress: Callable[[str], None] | None = None, ivy_settings: str | os.PathLike[str] | None = None) -> str:
    """Return a class path with Delta's JARs, in the version of the installed `delta-spark` package.

    The JARs are kept in a cache folder of the user's: `$SQLEXT_CACHE`, else `$XDG_CACHE_HOME/sqlext`, else `~/.cache/sqlext`.
    Only the first call needs a network; several processes may make it at once.

    Args:
        progress: called with a line for each JAR as its download begins; by default the lines are logged.
        ivy_settings: the file that Spark's `spark.jars.ivySettings` names, for users of a mirror.

    Returns:
        `<folder>/*`, for `spark.driver.extraClassPath`.

    Raises:
        SetupError: a JAR cannot be fetched or stored, or pyspark, delta-spark or Java is missing.
    """
    try:
        version = importlib.metadata.version("delta-spark")
    except importlib.metadata.PackageNotFoundError:
        raise SetupError("The Python package `delta-spark` is not installed. Run `pip install delta-spark`.") from None
    delta_spark = f"delta-spark_{'_'.join(_spark_and_scala())}"
    artifacts = [Artifact("io.delta", name, version) for name in (delta_spark, *_BESIDE_DELTA_SPARK)]
    return _class_path("Delta", f"{delta_spark}-{version}", artifacts, progress, ivy_settings)


def kafka_class_path(progress: Callable[[str], None] | None = None, ivy_settings: str | os.PathLike[str] | None = None) -> str:
    """Return a class path with the JARs of Spark's Kafka source for the installed Spark; see `delta_class_path`."""
    scala, spark = _scala_and_spark()
    of_spark = [f"spark-sql-kafka-0-10_{scala}", f"spark-token-provider-kafka-0-10_{scala}"]
    artifacts = [
        *(Artifact("org.apache.spark", name, spark) for name in of_spark),
        Artifact("org.apache.spark", f"spark-avro_{scala}", _AVRO),
        Artifact("org.apache.kafka", "kafka-clients", _KAFKA_CLIENTS),
        Artifact("org.apache.commons", "commons-pool2", _POOL),
    ]
    return _class_path("Kafka", f"{of_spark[0]}-{spark}", artifacts, progress, ivy_settings)


def avro_class_path(progress: Callable[[str], None] | None = None, ivy_settings: str | os.PathLike[str] | None = None) -> str:
    """Return a class path with the JAR of Spark's package for Avro, which that of Kafka has too; see `delta_class_path`."""
    name = f"spark-avro_{_scala_and_spark()[0]}"
    return _class_path("Avro", f"{name}-{_AVRO}", [Artifact("org.apache.spark", name, _AVRO)], progress, ivy_settings)


def s3_class_path(progress: Callable[[str], None] | None = None, ivy_settings: str | os.PathLike[str] | None = None) -> str:
    """Return a class path with Hadoop's S3A, for the installed Spark's Hadoop, and the AWS SDK; see `delta_class_path`."""
    hadoop = _spark_jar("hadoop-client-api-*.jar").stem.removeprefix("hadoop-client-api-")
    artifacts = [
        Artifact("org.apache.hadoop", "hadoop-aws", hadoop),
        Artifact("software.amazon.awssdk", "bundle", _AWS_SDK),
        Artifact("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", _S3_READER),
    ]
    return _class_path("S3A", f"hadoop-aws-{hadoop}", artifacts, progress, ivy_settings)


def files_of(class_path: str) -> list[str]:
    """Return the JARs of a class path of folders, such as `delta_class_path` returns, for `spark.jars`."""
    return [str(jar) for folder in class_path.split(os.pathsep) for jar in sorted(Path(folder).parent.glob("*.jar"))]


def is_cluster(master: object) -> bool:
    """Return whether executors run on other machines than the driver, by Spark's master; None: Spark's default, `local[*]`."""
    return not str(master or "local").startswith("local")  # `local-cluster` starts its executors on this machine


def _class_path(
    whose: str,
    folder_name: str,
    artifacts: list[Artifact],
    progress: Callable[[str], None] | None,
    ivy_settings: str | os.PathLike[str] | None,
) -> str:
    folder = _cache_folder() / "jars" / folder_name
    names = [artifact.file for artifact in artifacts]
    if not _is_complete(folder, names):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder)
        except OSError as error:
            raise SetupError(
                f"`{folder}`, the folder for {whose}'s JARs, cannot be written: {error.strerror}. "
                "Set SQLEXT_CACHE to a writable folder."
            ) from error
        with scratch as name:
            _fetch(Path(name), whose, artifacts, progress or _LOG.info, ivy_settings)
            _move_jars(Path(name), folder, names)
    return str(folder / "*")


def _spark_jars() -> Path:
    """Return the folder of Spark's own JARs: that of `SPARK_HOME` if it is set, as in pyspark, else pyspark's."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        package = importlib.util.find_spec("pyspark")
        home = os.path.dirname(package.origin) if package and package.origin else ""
    jars = Path(home, "jars")
    if not (home and jars.is_dir()):
        raise SetupError(f"There is no folder of Spark's JARs at `{jars}`. Run `pip install pyspark`, or correct SPARK_HOME.")
    return jars


def _spark_jar(pattern: str) -> Path:
    folder = _spark_jars()
    for jar in folder.glob(pattern):
        return jar
    raise SetupError(f"There is no `{pattern}` in `{folder}`. Reinstall pyspark, or correct SPARK_HOME.")


def _scala_and_spark() -> tuple[str, str]:
    """Return the versions of Scala and Spark, such as `2.13` and `4.2.0`, from the name `spark-core_2.13-4.2.0.jar`."""
    scala, spark, *_ = _spark_jar("spark-core_*-*.jar").stem.removeprefix("spark-core_").split("-")
    return scala, spark


def _spark_and_scala() -> tuple[str, str]:
    """Return the versions of Spark and Scala as they occur in the names of Delta's artifacts: `4.2` and `2.13`."""
    scala, spark = _scala_and_spark()
    return ".".join(spark.split(".")[:2]), scala


def _cache_folder() -> Path:
    own, xdg = os.environ.get("SQLEXT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(own).expanduser() if own else (Path(xdg) if xdg else Path.home() / ".cache") / "sqlext").absolute()
    except RuntimeError as error:  # pathlib's, for an account without a home
        raise SetupError("The user's home folder is unknown. Set SQLEXT_CACHE to a folder for JARs.") from error


def _is_complete(folder: Path, names: list[str]) -> bool:
    """Return whether the folder was completed and its JARs are still those that were fetched."""
    try:
        noted = (folder / _MARKER).read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        noted = ""
    if are_sound(folder, names, noted):
        return True
    _LOG.warning("the JARs in %s are not those that were fetched; they are fetched again", folder)
    return False


def _fetch(
    scratch: Path,
    whose: str,
    artifacts: list[Artifact],
    progress: Callable[[str], None],
    ivy_settings: str | os.PathLike[str] | None,
) -> None:
    """Let Ivy put the artifacts' JARs into `scratch`; its own cache goes there too, so it leaves nothing behind."""
    wanted = "".join(
        f'<dependency org="{each.group}" name="{each.name}" rev="{each.version}" conf="*->default" transitive="false"/>'
        for each in artifacts
    )
    module = '<ivy-module version="2.0"><info organisation="sqlext" module="jars"/><dependencies>'
    (scratch / "ivy.xml").write_text(f"{module}{wanted}</dependencies></ivy-module>", encoding="utf-8")
    # Paths are relative to `scratch`: a bracket in an absolute path would have a meaning in Ivy's patterns.
    command = [str(check_java()), "-cp", str(_spark_jar("ivy-*.jar")), "org.apache.ivy.Main", "-ivy", "ivy.xml"]
    command += ["-cache", "ivy", "-retrieve", "[artifact]-[revision].[ext]"]
    if ivy_settings:
        settings = Path(os.fspath(ivy_settings).removeprefix("file://").removeprefix("file:")).absolute()
        if not settings.is_file():
            raise SetupError(f"`spark.jars.ivySettings` names `{settings}`, which is not a file. Correct it, or unset it.")
        command += ["-settings", str(settings)]
    output, expired, failed = _run_ivy(command, scratch, progress)
    missing = [artifact for artifact in artifacts if not (scratch / artifact.file).is_file()]
    if failed or missing:
        unresolved = set(_UNRESOLVED.findall(output))
        named = [artifact for artifact in artifacts if artifact.name in unresolved]
        listed = ", ".join(f"`{artifact}`" for artifact in named or missing or artifacts)
        said = _REASON.search(output)
        reason = "not found in any repository" if named else "Ivy ended without fetching them"
        if said:
            reason = said[said.lastindex or 0]
        if expired:
            reason = f"not finished after {_FETCH_DEADLINE:.0f} seconds"
        raise SetupError(
            f"{whose}'s {listed} could not be fetched: {reason}. sqlext needs access to Maven Central once, or to a "
            "mirror named in the `spark.jars.ivySettings` file. Or put the JARs on `spark.driver.extraClassPath` yourself."
        )


def _run_ivy(command: list[str], folder: Path, progress: Callable[[str], None]) -> tuple[str, bool, bool]:
    """Run Ivy in the folder; return its output, whether its time was up, and whether it failed."""
    output = ""
    deadline = Deadline(_FETCH_DEADLINE)
    with subprocess.Popen(  # noqa: S603  # Java as checked, and no argument comes from SQL
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as ivy:
        killer = threading.Timer(_FETCH_DEADLINE, ivy.kill)
        killer.start()
        try:
            for line in ivy.stdout or ():
                output += line
                if download := _DOWNLOADING.match(line):
                    progress(f"Downloading {download[1]}")
            failed = ivy.wait() != 0
        finally:
            killer.cancel()
            ivy.kill()  # does nothing if it has ended
    return output, failed and deadline.has_passed, failed


def _move_jars(scratch: Path, folder: Path, names: list[str]) -> None:
    """Move each JAR into place as a whole, then the marker: no other process sees a partial JAR."""
    for name in names:
        try:
            with zipfile.ZipFile(scratch / name) as jar:
                broken = jar.testzip()
        except zipfile.BadZipFile:
            broken = name
        if broken:
            raise SetupError(f"`{name}` arrived damaged. Try again; a proxy may have sent a page of its own in its place.")
    check(scratch, names)
    (scratch / _MARKER).write_text(inventory(scratch, names), encoding="utf-8")
    for name in [*names, _MARKER]:
        (scratch / name).replace(folder / name)
