"""The parts that Spark loads: the session extension, the parser, table functions, JARs."""
