"""A standalone cluster on this machine: a master, and workers that share no module path with the driver.

The Python of executors is an environment with pyarrow and pandas alone; sqlext and the user's functions reach it as files.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import venv
import zipfile
from contextlib import suppress
from pathlib import Path

import pyspark

from tests.java import ONE_TIER
from tests.support import eventually, free_port

ROOT = Path(__file__).parents[2]
FUNCTIONS = Path(__file__).with_name("cluster_functions.py")
_SPARK = Path(pyspark.__file__).parent
_DEADLINE = 120.0
UNSHARE = ("unshare", "--mount")
"""Starts a process that mounts for itself; only root may."""
_PACKAGES = "pyarrow pandas numpy dateutil pytz tzdata six"
"""What Spark's Python workers need for Arrow, and what these need in turn."""


class Cluster:
    """A master and its workers, each in a process group of its own, with its executors.

    Args:
        folder: for the workers' folders, their Python, and the files for executors.
        workers: how many are started.
        hidden: a folder in whose place workers see another, as if it was on the driver's machine.
    """

    def __init__(self, folder: Path, workers: int = 2, hidden: Path | None = None) -> None:
        self.folder = folder
        self._hidden = hidden
        folder.mkdir()
        self.port = free_port()
        self.python = _python(folder / "python")
        self.package = zipped_package(folder / "sqlext.zip")
        self.functions = Path(shutil.copy(FUNCTIONS, folder))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self._start("master.Master", "--port", str(self.port))
        eventually(lambda: self._registered(0, "master.Master") is not None, _DEADLINE, lambda: self.said(0))
        for _ in range(workers):
            self.start_worker()

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def settings(self) -> list[str]:
        """The arguments with which `sqlext` runs on this cluster."""
        given = {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "700m",
            "spark.executor.extraJavaOptions": ONE_TIER,
            "spark.submit.pyFiles": f"{self.package},{self.functions}",
        }
        return [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]

    @property
    def environment(self) -> dict[str, str]:
        """That of a driver: Spark tells executors which Python to run."""
        return {**os.environ, "PYSPARK_PYTHON": str(self.python)}

    def start_worker(self) -> None:
        place = len(self.processes)
        arguments = ["--cores", "2", "--memory", "1g", "--work-dir", str(self.folder / f"work{place}"), self.url]
        self.workers.append(self._start("worker.Worker", *arguments))
        eventually(lambda: self._registered(place, "worker.Worker") is not None, _DEADLINE, lambda: self.said(place))

    def kill_worker(self, place: int) -> None:
        """Kill a worker with its executors, as if its machine was lost."""
        worker = self.workers.pop(place)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def close(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def said(self, place: int) -> str:
        return (self.folder / f"process{place}.txt").read_text(errors="replace")[-3000:]

    def _registered(self, place: int, kind: str) -> re.Match[str] | None:
        ready = "I have been elected leader" if kind == "master.Master" else "Successfully registered with master"
        return re.search(ready, (self.folder / f"process{place}.txt").read_text(errors="replace"))

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        command += ["--webui-port", "0", *arguments]
        if self._hidden is not None and kind == "worker.Worker":
            command = [*UNSHARE, "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(self._hidden), *command]
        environment = {name: value for name, value in os.environ.items() if name in ("PATH", "JAVA_HOME", "LANG")}
        environment |= {
            "HOME": str(self.folder),
            "SPARK_HOME": str(_SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{ONE_TIER} -Dspark.master.rest.enabled=false",
        }
        with (self.folder / f"process{len(self.processes)}.txt").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process


def zipped_package(path: Path) -> Path:
    """Write sqlext's modules into a zip, as its wheel has them."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package, folder in folders.items():
            for file in sorted((ROOT / folder).glob("*.py")):
                archive.write(file, f"{package.replace('.', '/')}/{file.name}")
    return path


def kill_driver(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver at once with its Java, which would end more gently by itself."""
    ours = [process.pid, *_children(process.pid)]
    for each in ours:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    process.wait()


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if status.read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append(int(status.parent.name))
    return found


def _python(folder: Path) -> Path:
    """Make an environment that has `_PACKAGES` only: links to those of this process."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in _PACKAGES.split():
        origin = Path((found.origin if (found := importlib.util.find_spec(name)) else None) or "")
        source = origin.parent if origin.name == "__init__.py" else origin
        assert source.exists(), f"{name} is not installed"
        for path in (source, source.parent / f"{name}.libs"):
            if path.exists():
                (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"
