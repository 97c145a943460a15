"""Kubernetes' own schemas of the objects that the page about clusters has, in the strict form: no other fields are allowed.

`fixtures/kubernetes.json` is the part of github.com/yannh/kubernetes-json-schema (Apache 2.0) that these kinds need.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

_SCHEMAS = json.loads((Path(__file__).parent / "fixtures" / "kubernetes.json").read_text(encoding="utf-8"))
VERSION: str = _SCHEMAS["version"]


def validate(manifest: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError if a manifest is not valid in `VERSION`, KeyError for an object of another kind."""
    schema = {**_SCHEMAS["kinds"][manifest["kind"]], "$defs": _SCHEMAS["$defs"]}
    Draft202012Validator(schema).validate(manifest)
