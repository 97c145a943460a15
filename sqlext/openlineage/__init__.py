"""Events for OpenLineage: which flow, refresh or job reads and writes which datasets and columns, and what became of it.

`sending` is the thread that sends them, `events` has them as the client's classes, `analysis` finds the columns, `naming` has the
names of datasets. Only `events` and `sending` import the client, which is an extra: `sqlext[openlineage]`.
"""
