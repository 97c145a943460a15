"""Differential tests: generated queries as flows, and materialized views after generated changes, against Spark's batch queries.

Queries run as flows in both state backends and as END OF STREAM, `--queries N --seed S`; a failure prints a minimal query and the
rows of its commits. Views are refreshed after changes of their sources, `--rounds N --seed S`; a failure prints what was done.
"""
