"""Fingerprints of Python functions: a resumed job must call the functions it began with."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from typing import Any

from sqlext.functions.scalar import Reduction

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(function: Any) -> str:
    """Return a fingerprint of a function's code, the same in every process; for an object, that of its class.

    It covers neither the functions that it calls nor the values that it closes over, other than the arguments of a partial.
    """
    return hashlib.sha256(_text(function).encode()).hexdigest()[:16]


def _text(function: Any) -> str:
    if isinstance(function, Reduction):
        return f"reduce {_text(function.combine)}"
    if isinstance(function, functools.partial):
        given = [*function.args, *(each for pair in sorted(function.keywords.items()) for each in pair)]
        return " ".join(["partial", _text(function.func), *map(_value, given)])
    subject = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        return inspect.getsource(subject)
    except (OSError, TypeError):  # typed into a prompt, or written in C
        return _compiled(subject)


def _value(value: Any) -> str:
    """Return the text of an argument, without the addresses of objects, which differ in every process."""
    if callable(value):
        return _text(value)
    kind = type(value).__name__
    if isinstance(value, dict):
        return f"{kind} {[(_value(key), _value(each)) for key, each in value.items()]}"
    if isinstance(value, set | frozenset):
        return f"{kind} {sorted(map(_value, value))}"
    if isinstance(value, list | tuple):
        return f"{kind} {[*map(_value, value)]}"
    return f"{kind} {_ADDRESS.sub('', repr(value))}"


def _compiled(subject: Any) -> str:
    if inspect.isclass(subject):
        return "".join(_compiled(each) for _, each in inspect.getmembers(subject, inspect.isfunction))
    code = getattr(subject, "__code__", None)
    if code is None:
        return f"{subject.__module__}.{subject.__qualname__}"
    constants = [each for each in code.co_consts if not inspect.iscode(each)]
    return repr((code.co_code, constants, code.co_names, code.co_varnames))
