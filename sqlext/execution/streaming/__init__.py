"""Streaming queries as Spark runs them: their sources, checkpoints and pace."""
