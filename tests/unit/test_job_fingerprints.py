"""Fingerprints tell functions apart by their code, also that of functions which other ones hold."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from sqlext.execution.jobs.fingerprints import fingerprint
from sqlext.functions.scalar import Reduction


def shorter(a: str, b: str) -> str:
    return min(a, b, key=len)


def longer(a: str, b: str) -> str:
    return max(a, b, key=len)


def scaled(factor: Any, value: Any, offset: Any = 0) -> Any:
    return factor * value + offset


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (shorter, longer),
        (Reduction(shorter), Reduction(longer)),
        (Reduction(shorter), shorter),
        (partial(shorter), partial(longer)),
        (partial(scaled, 2), partial(scaled, 3)),
        (partial(scaled, 2), partial(scaled, "2")),
        (partial(scaled, 2, offset=1), partial(scaled, 2, offset=2)),
        (partial(scaled, shorter), partial(scaled, longer)),
        (Reduction(partial(scaled, offset=1)), Reduction(partial(scaled, offset=2))),
    ],
)
def test_functions_that_differ_have_other_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_function_has_one_fingerprint_in_every_process() -> None:
    """Also beside sets and objects without a text of their own, whose texts are others there."""
    given = partial(scaled, {"a", "b", "c", "d"}, offset=object())
    code = f"from {__name__} import *; print(fingerprint(partial(scaled, {{'d', 'c', 'b', 'a'}}, offset=object())))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == fingerprint(given)
