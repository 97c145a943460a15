"""SQL as text and as trees: tokens, the grammar of our statements, the dialect, and the engine that applies rewrite rules."""
