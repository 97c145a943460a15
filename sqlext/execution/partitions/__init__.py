"""Whole partitions mapped, sorted, aggregated and reduced (FLIP-380), and cogroups (FLIP-331)."""
