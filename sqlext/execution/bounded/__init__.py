"""Bounded queries that fill a table."""
