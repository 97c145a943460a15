"""Flows and jobs on Spark. Knows no sqlglot."""
