"""Access to Spark's private side: sessions, settings, storage, errors, physical plans. pyproject.toml lists other such files."""
