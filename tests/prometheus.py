"""A Prometheus for tests: one that is installed, or Debian's package, taken apart in the user's cache; nothing is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlext.extension import jars
from sqlext.page.address import Address
from tests.support import eventually

_FETCH_SECONDS = 240.0
_START_SECONDS = 120.0
_SETTINGS = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: sqlext
    static_configs: [{{targets: ["{target}"]}}]
"""


@dataclass(frozen=True)
class Programs:
    """Where Prometheus' programs are."""

    prometheus: str
    promtool: str


def programs() -> Programs:
    """Return Prometheus' programs, fetched once for a user where they are not installed."""
    installed = shutil.which("prometheus"), shutil.which("promtool")
    if installed[0] and installed[1]:
        return Programs(installed[0], installed[1])
    folder = jars._cache_folder() / "tests" / "prometheus"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            subprocess.run(["apt-get", "update", "-q"], capture_output=True, timeout=_FETCH_SECONDS)
        subprocess.run(
            ["apt-get", "download", "-q", "prometheus"], cwd=folder, check=True, capture_output=True, timeout=_FETCH_SECONDS
        )
        (package,) = folder.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True, capture_output=True, timeout=_FETCH_SECONDS)
        package.unlink()
        (folder / "complete").touch()
    return Programs(str(folder / "usr/bin/prometheus"), str(folder / "usr/bin/promtool"))


class Prometheus:
    """A Prometheus that scrapes one target each second, with sqlext's alert rules.

    Args:
        folder: for its files.
        target: host and port of the page.
        rules: the text of the rules.
    """

    def __init__(self, folder: Path, target: str, rules: str) -> None:
        (folder / "prometheus.yml").write_text(_SETTINGS.format(target=target))
        (folder / "alerts.yml").write_text(rules)
        with Address("127.0.0.1", 0).listen() as taken:
            self._url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        command = [programs().prometheus, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        log = (folder / "prometheus.log").open("wb")
        address = self._url.removeprefix("http://")
        self._process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        eventually(self._answers, _START_SECONDS, lambda: (folder / "prometheus.log").read_text()[-2000:])

    def _answers(self) -> bool:
        assert self._process.poll() is None, "Prometheus has ended"
        with suppress(OSError), urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def alerts(self) -> set[str]:
        """The names of the alerts that are pending or firing."""
        return {each["labels"]["alertname"] for each in self._get("alerts")["alerts"]}

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]
