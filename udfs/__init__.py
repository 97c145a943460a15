"""SQL functions written in Python, one family a file."""

if __name__ != "sqlext.udfs":  # a second import under another name would register every function twice
    raise ImportError(f"import sqlext.udfs, not {__name__}")
