"""What the registry of jobs says of one job, read from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def events_of_job(jobs: Path, table: str) -> list[dict[str, Any]]:
    """The registry's events of the jobs into a table, in order; those that a snapshot stands for are files still.

    Args:
        jobs: the folder of all jobs.
        table: the table's own name.
    """
    events = [json.loads(file.read_text()) for file in sorted(jobs.glob("registry/*[0-9].json"))]
    ours = {each["job_id"] for each in events if each["spec"] and json.loads(each["spec"])["target"][-1] == table}
    return [each for each in events if each["job_id"] in ours]
