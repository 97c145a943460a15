"""Nexmark, the benchmark of auctions, as SQL: generator, queries, and a run of both sides."""
