"""A differential test: generated queries, as flows in both state backends and as END OF STREAM, against Spark's batch queries.

`--queries N --seed S` are pytest options; a failure prints a minimal query and the rows of its commits.
"""
