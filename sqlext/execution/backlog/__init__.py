"""Backlog (FLIP-309): a few large micro-batches while a source catches up, and back to normal by itself."""
