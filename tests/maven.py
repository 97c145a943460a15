"""Programs for tests from Maven's repositories, fetched once for a user by the Ivy that pyspark ships."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sqlext.extension import jars

_FETCH_SECONDS = 300.0


def fetched(group: str, name: str, version: str, options: Sequence[str] = ()) -> Path:
    """A folder with a JAR, and with those that it needs unless `options`, of Ivy's command line, say otherwise."""
    folder = jars._cache_folder() / "tests" / f"{name}-{version}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        ivy = [str(jars.check_java()), "-cp", str(jars._spark_jar("ivy-*.jar")), "org.apache.ivy.Main", "-cache", "ivy"]
        what = ["-dependency", group, name, version, "-confs", "default", *options]
        retrieve = ["-retrieve", "[artifact]-[revision].[ext]"]
        subprocess.run([*ivy, *what, *retrieve], cwd=folder, check=True, capture_output=True, timeout=_FETCH_SECONDS)
        shutil.rmtree(folder / "ivy")
        (folder / "complete").touch()
    return folder
