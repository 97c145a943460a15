"""Python functions over one key at a time, with state and timers: in bounded stages (FLIP-140) and over streams."""
