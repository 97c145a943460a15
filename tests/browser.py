"""A Chromium for tests: one that is there, or the one that Playwright or the system's packages bring.

Looked for, in this order: `CHROMIUM` in the environment, the usual names on PATH, Playwright's own. Where there is none, it is
fetched: by `playwright install`, and where that site cannot be reached, by `apt-get` as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_APT = (["apt-get", "update", "-q"], ["apt-get", "install", "-yq", "--no-install-recommends", "chromium-headless-shell"])
_FETCH_SECONDS = 240.0


def on_path() -> str | None:
    """A Chromium that is installed, if there is one."""
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium, for a `with` block."""
    with sync_playwright() as playwright:
        path = on_path() or _playwrights(Path(playwright.chromium.executable_path)) or _fetched()
        # root cannot have Chromium's sandbox; what the tests open is their own
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def _playwrights(full: Path) -> str | None:
    """Playwright's own, whole or headless only, if it was ever installed."""
    shells = sorted(full.parents[2].glob("chromium_headless_shell-*/*/*headless*shell*"))
    return next((str(each) for each in (full, *reversed(shells)) if each.is_file() and os.access(each, os.X_OK)), None)


def _fetched() -> str | None:
    """Bring one; None leaves the choice to Playwright, which has just been given its own."""
    install = [sys.executable, "-m", "playwright", "install", "chromium", "--only-shell"]
    tried = subprocess.run(install, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    if tried.returncode == 0:
        return None
    if shutil.which("apt-get") and os.geteuid() == 0:
        for command in _APT:
            subprocess.run(command, capture_output=True, timeout=_FETCH_SECONDS, check=True)
        return on_path()
    raise AssertionError(
        "These tests need a Chromium, and Playwright's could not be fetched. Install one, or name it in CHROMIUM.\n"
        + tried.stderr[-500:]
    )
