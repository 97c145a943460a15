"""`sqlext shell`: an SQL prompt on the session of this process. Needs the extra `shell`."""
