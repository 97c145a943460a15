"""SQL as text and as trees: tokens, the grammar of our statements, the dialect, and the machine that rewrites queries."""
