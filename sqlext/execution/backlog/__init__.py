"""Backlog (FLIP-309): few, large micro-batches while a source catches up, and back again, by itself."""
