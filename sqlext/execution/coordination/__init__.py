"""One driver at a time, and one order of events: event logs, fences, leases, the home."""
