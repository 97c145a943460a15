"""What a statement will run, as values: the job graph, a flow's record, and EXPLAIN's text. Knows no sqlglot and no Spark."""
