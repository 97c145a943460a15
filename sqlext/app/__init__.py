"""The work of the command line: script files, the embedded warehouse, the demo, progress and results."""
