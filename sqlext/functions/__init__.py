"""Functions that users register from Python: scalar, aggregate, partition and keyed functions, and backlog reports."""
