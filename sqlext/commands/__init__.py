"""One module a family of statements: from a parsed statement to its answer."""
