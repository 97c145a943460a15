"""SQL functions written in Python, one family a file; `ALL` is what every session has."""

if __name__ != "sqlext.udfs":  # a second import under another name would register every function twice
    raise ImportError(f"import sqlext.udfs, not {__name__}")

from sqlext.functions import PythonFunction
from sqlext.udfs import means

ALL: tuple[PythonFunction, ...] = (*means.FUNCTIONS,)
