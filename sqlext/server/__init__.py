"""Thrift and Spark Connect servers, and the error messages that their clients see."""
