"""Python functions over one key at a time, with state and timers: bounded (FLIP-140) and over streams."""
