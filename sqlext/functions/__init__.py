"""What users register from Python: scalar and aggregate functions, functions over partitions and keys, backlog reports."""
