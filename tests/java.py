"""Java for the processes that tests start: they live for seconds, most of which go into starting it."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.support import eventually

ONE_TIER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"  # half the CPU time of a process as short as these
_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_SHARED = "SQLEXT_TEST_CLASSES"
_DEADLINE = 600.0
_USUAL = """
CREATE TABLE ev (k STRING, v INT) USING json;
INSERT INTO ev VALUES ('a', 1), ('b', 2);
CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k;
SELECT * FROM t;
"""


def share_archive() -> None:
    """Let this process and those that it starts have one archive, until this one ends: the processes of `pytest -n`."""
    folder = tempfile.mkdtemp(prefix="sqlext-java-")
    os.environ[_SHARED] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


@cache
def java_options() -> str:
    """Java's options, with an archive of the classes of Spark and Delta as Java has loaded and verified them once (JEP 350).

    The archive is made when the first test of any process asks for it. Where it does not fit, Java goes without.
    """
    folder = Path(os.environ[_SHARED])
    archive = folder / "classes.jsa"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(folder, archive)
    return f"{ONE_TIER} {_QUIET} -XX:SharedArchiveFile={archive}"


def _make(folder: Path, archive: Path) -> None:
    (folder / "usual.sql").write_text(_USUAL)
    command = [sys.executable, "-m", "sqlext.cli", "run", str(folder / "usual.sql"), "--until-idle"]
    command += ["--warehouse", str(folder / "warehouse")]
    command += ["--conf", f"spark.driver.extraJavaOptions={ONE_TIER} {_QUIET} -XX:ArchiveClassesAtExit={archive}"]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_DEADLINE)
    # Java writes the archive as it ends, and has the warehouse till then: on a busy machine, longer than who started it.
    lock = folder / "warehouse" / "_metastore" / "lock"
    eventually(lambda: _is_free(lock), _DEADLINE, lambda: "Java has not ended")
    assert archive.exists(), f"Java has written no {archive}"


def _is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
