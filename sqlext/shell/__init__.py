"""`sqlext shell`: an SQL prompt on this process's session. Needs the extra `shell`."""
