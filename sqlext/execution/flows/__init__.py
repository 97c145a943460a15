"""Flows: made, recorded, run, flushed, renewed, retried."""
