"""The plan of a statement, as values: the job graph, a flow's record, and EXPLAIN's text. Uses neither sqlglot nor Spark."""
