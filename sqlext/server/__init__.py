"""Thrift and Spark Connect servers, and what their clients are told."""
