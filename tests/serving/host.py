"""`sqlext serve` with what tests need in its process: a bug, things that wait for a file, and counts of what it holds.

SIGUSR1 writes the counts to `counts.json` in the folder that SQLEXT_TEST_FOLDER names.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkContext

import sqlext
from sqlext.cli import main
from sqlext.execution.flows.manager import FlowManager
from sqlext.spark.java import field_of, java_of

FOLDER = Path(os.environ["SQLEXT_TEST_FOLDER"])
_DEADLINE = 120.0


def wait_for(path: str) -> int:
    """1, once the file is there. While it waits, it touches another one."""
    deadline = time.monotonic() + 120
    while not os.path.exists(path) and time.monotonic() < deadline:
        with open(path + ".beat", "w") as beat:
            beat.write(str(time.time()))
        time.sleep(0.05)
    return 1


def divide_by_zero(number: int) -> int:
    return number // 0


def _with_bug(drop: Callable[..., str]) -> Callable[..., str]:
    def wrapped(flows: FlowManager, name: tuple[str, ...], if_exists: bool) -> str:
        if name[-1] == "boom":
            raise RuntimeError(f"no file {FOLDER / 'notes.txt'}")
        return drop(flows, name, if_exists)

    return wrapped


def _held(run: Callable[..., None]) -> Callable[..., None]:
    def wrapped(flows: FlowManager, spec: Any, *rest: Any) -> None:
        if spec.name == "held":
            wait_for(str(FOLDER / "held"))
        run(flows, spec, *rest)

    return wrapped


def _count() -> None:
    context: Any = SparkContext._active_spark_context
    gateway, java = context._gateway, java_of(context)
    gc.collect()
    java.java.lang.System.gc()
    client = gateway.java_gateway_server.getCallbackClient()
    threads = [str(each.getName()) for each in java.java.lang.Thread.getAllStackTraces().keySet().toArray()]
    runtime = java.java.lang.Runtime.getRuntime()
    counts = {
        "proxies": len(gateway.gateway_property.pool.dict),
        "parsers": sum(type(each).__name__ == "_Parser" for each in list(gateway.gateway_property.pool.dict.values())),
        "threads": threading.active_count(),
        "waiters": [each.name for each in threading.enumerate() if each.name.startswith("sqlext-wait-")],
        "java_threads": len(threads),
        "java_objects": int(field_of(field_of(client, "gateway"), "bindings").size()),
        "java_megabytes": (runtime.totalMemory() - runtime.freeMemory()) >> 20,
        "files": len(os.listdir("/proc/self/fd")),
        "names": sorted(threads),
    }
    new = FOLDER / "counts.new"
    new.write_text(json.dumps(counts))
    new.rename(FOLDER / "counts.json")


if __name__ == "__main__":
    FlowManager.drop = _with_bug(FlowManager.drop)  # type: ignore[method-assign]
    FlowManager.run = _held(FlowManager.run)  # type: ignore[method-assign]
    sqlext.register_function("wait_for", wait_for, "INT")
    sqlext.register_function("divide_by_zero", divide_by_zero, "INT")
    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=_count, daemon=True).start())
    main()
