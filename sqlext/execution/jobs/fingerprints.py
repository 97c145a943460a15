"""Fingerprints of Python functions: a resumed job must call the functions it began with."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any


def fingerprint(function: Any) -> str:
    """Return a fingerprint of a function's code, the same in every process; for an object, that of its class.

    It covers neither the functions that it calls nor the values that it closes over.
    """
    subject = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        text = inspect.getsource(subject)
    except (OSError, TypeError):  # typed into a prompt, or written in C
        text = _compiled(subject)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _compiled(subject: Any) -> str:
    if inspect.isclass(subject):
        return "".join(_compiled(each) for _, each in inspect.getmembers(subject, inspect.isfunction))
    code = getattr(subject, "__code__", None)
    if code is None:
        return f"{subject.__module__}.{subject.__qualname__}"
    constants = [each for each in code.co_consts if not inspect.iscode(each)]
    return repr((code.co_code, constants, code.co_names, code.co_varnames))
