"""Collects `*.slt` files: a file is one test on the shared session. `runner.py` describes the format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import TerminalRepr
from pyspark.sql import SparkSession

from sqlext.extension import session as sqlext_session
from tests.slt import runner


class SltError(Exception):
    """The failures of a file, for people."""


class SltSession:
    """Runs records on a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def execute(self, sql: str) -> Sequence[Sequence[Any]]:
        return self._spark.sql(sql).collect()

    def wait(self, flow: str) -> None:
        self.execute(f"WAIT FLOW {flow} TIMEOUT 4 minutes")

    def restart(self) -> None:
        installed = sqlext_session.installation_of(self._spark)
        installed.close()
        installed.get_host().flows.resume()


class SltItem(pytest.Function):
    """The test of one file; being a function of `spark` gives it fixtures."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        if isinstance(excinfo.value, SltError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.path.name


class SltFile(pytest.File):
    """A file."""

    def collect(self) -> Iterator[pytest.Item]:
        text = self.path.read_text(encoding="utf-8")
        try:
            records = runner.parse(text, self.path.name)
        except runner.SltSyntaxError as problem:
            raise self.CollectError(str(problem)) from None

        def test(spark: SparkSession) -> None:
            failures = list(runner.run(records, SltSession(spark)))
            if self.config.getoption("complete"):
                self.path.write_text(runner.completed(text, failures), encoding="utf-8")
                failures = [failure for failure in failures if failure.query is None]
            if failures:
                raise SltError("\n\n".join(f"{self.path}:{each.line}: {each.text}" for each in failures))

        yield SltItem.from_parent(self, name=self.path.stem, callobj=test)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return SltFile.from_parent(parent, path=file_path) if file_path.suffix == ".slt" else None
