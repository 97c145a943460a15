"""The private doors into Spark's Java side: sessions, settings, storage, errors, physical plans. Few seams lie elsewhere."""
