"""What runs in a terminal: files of statements, the embedded warehouse, the demo, progress and results."""
