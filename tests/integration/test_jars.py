"""`jars.py` against the real Ivy and the real repository: the one test that needs a network."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sqlext.extension import jars


def test_delta_and_only_delta_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLEXT_CACHE", str(tmp_path))
    told: list[str] = []
    folder = Path(jars.delta_class_path(told.append)).parent
    fetched = sorted(jar.name.rsplit("-", 1)[0] for jar in folder.glob("*.jar"))
    assert fetched == ["delta-kernel-api", "delta-kernel-defaults", "delta-spark_4.2_2.13", "delta-storage"]
    assert sorted(told) == sorted(f"Downloading {jar.name}" for jar in folder.glob("*.jar"))
    with zipfile.ZipFile(next(folder.glob("delta-spark_*.jar"))) as jar:
        assert "io/delta/sql/DeltaSparkSessionExtension.class" in jar.namelist()
    assert jars.delta_on_class_path(str(folder / "*"))
    assert jars.delta_class_path(told.append) == str(folder / "*")
    assert len(told) == 4  # the second call found them
