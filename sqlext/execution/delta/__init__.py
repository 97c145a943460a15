"""Delta tables: their log and files, commits that happen exactly once, and the table that a flow keeps up to date."""
