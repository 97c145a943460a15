"""State between micro-batches: buffers, and the state of aggregates in Delta tables."""
