"""Unit tests need no Spark; a busy machine must not fail a property test, so only pytest's own deadline holds."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("sqlext", deadline=None)
settings.load_profile("sqlext")
