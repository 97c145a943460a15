"""SQL functions written in Python, one file per family; `ALL` are the functions that every session has."""

if __name__ != "sqlext.udfs":  # a second import under another name would register every function twice
    raise ImportError(f"import sqlext.udfs, not {__name__}")

from sqlext.functions.partition import PARTITION_FUNCTIONS
from sqlext.functions.scalar import PythonFunction
from sqlext.udfs import means, partitions

ALL: tuple[PythonFunction, ...] = (*means.FUNCTIONS,)

for _function in partitions.FUNCTIONS:  # these need no session: SQL looks them up at each call
    PARTITION_FUNCTIONS.add(_function)
