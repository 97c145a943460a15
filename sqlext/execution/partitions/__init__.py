"""Map, sort, aggregate and reduce over whole partitions (FLIP-380), and cogroups (FLIP-331)."""
