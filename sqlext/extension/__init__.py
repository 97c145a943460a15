"""What Spark loads: the session's extension, the parser, table functions, JARs."""
