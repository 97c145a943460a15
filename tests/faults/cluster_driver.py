"""Runs `sqlext` with a user's functions, as the driver of a cluster.

    python -m tests.faults.cluster_driver FOLDER serve --connect ..

FOLDER has the module `cluster_functions`, which executors get by another way than this process.
"""

from __future__ import annotations

import importlib
import sys

import sqlext
from sqlext.cli import main

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))
    functions = importlib.import_module("cluster_functions")
    sqlext.register_function("doubled", functions.doubled, "BIGINT")
    sqlext.register_partition_function("totals", functions.totals, returns="k BIGINT, v BIGINT, total BIGINT")
    sqlext.register_partition_function("places", functions.places, returns="place STRING")
    main()
