"""HDFS on this machine: a name node and a data node as processes of their own, which can be killed and started again."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlext.extension import jars
from tests.maven import fetched
from tests.support import eventually, free_port

_START_SECONDS = 120.0
_NODES = {
    "name node": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "data node": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}


class Hdfs:
    """The file system, in a `with` block.

    Args:
        folder: for what the nodes keep, and for their logs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {name: free_port() for name in ("name node", "page", "data node", "calls")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._java = [
            str(jars.check_java()),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            self._class_path(),
        ]

    @property
    def location(self) -> str:
        """The root folder."""
        return f"hdfs://127.0.0.1:{self._ports['name node']}"

    @property
    def settings(self) -> list[str]:
        """Arguments of the command line for a cluster with one data node."""
        return ["--conf", "spark.hadoop.dfs.replication=1"]

    def __enter__(self) -> Hdfs:
        conf = self._folder / "conf"
        conf.mkdir()
        settings = "".join(
            f"<property><name>{key}</name><value>{value}</value></property>" for key, value in self._conf().items()
        )
        for name in ("core-site.xml", "hdfs-site.xml"):
            (conf / name).write_text(f"<configuration>{settings}</configuration>")
        with self._log("name node") as log:
            command = [*self._java, _NODES["name node"], "-format", "-nonInteractive"]
            subprocess.run(command, check=True, stdout=log, stderr=log, timeout=_START_SECONDS)
        for node in _NODES:
            self.start(node)
        self._wait_until_open()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._processes:
            self.kill(node)

    def start(self, node: str) -> None:
        """Start a node again, with what it has kept."""
        with self._log(node) as log:
            self._processes[node] = subprocess.Popen([*self._java, _NODES[node]], stdout=log, stderr=log)

    def kill(self, node: str) -> None:
        self._processes[node].kill()
        self._processes[node].wait()

    def restart(self, node: str) -> None:
        """Kill a node, start it again, and wait until files can be read and written."""
        self.kill(node)
        self.start(node)
        self._wait_until_open()

    def changes(self) -> int:
        """How many changes of files and folders the name node has written into its log since it started."""
        return int(self._says("NameNodeActivity")["TransactionsNumOps"])

    def has_changed(self, changes: int) -> bool:
        """Whether there have been so many changes."""
        return self.changes() >= changes

    def _wait_until_open(self) -> None:
        eventually(self._is_open, _START_SECONDS, lambda: (self._folder / "name node.txt").read_text()[-2000:])

    def _is_open(self) -> bool:
        with suppress(OSError, LookupError), socket.create_connection(("127.0.0.1", self._ports["data node"]), timeout=5):
            return not self._says("NameNodeInfo")["Safemode"] and self._says("FSNamesystemState")["NumLiveDataNodes"] == 1
        return False

    def _says(self, bean: str) -> dict[str, Any]:
        """What the name node says of itself."""
        page = f"http://127.0.0.1:{self._ports['page']}/jmx?qry=Hadoop:service=NameNode,name={bean}"
        with urllib.request.urlopen(page, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)["beans"][0]
        return found

    def _conf(self) -> dict[str, str]:
        ports = {name: f"127.0.0.1:{port}" for name, port in self._ports.items()}
        return {
            "fs.defaultFS": self.location,
            "dfs.namenode.name.dir": (self._folder / "names").as_uri(),
            "dfs.namenode.http-address": ports["page"],
            "dfs.namenode.safemode.extension": "0",
            "dfs.datanode.data.dir": (self._folder / "blocks").as_uri(),
            "dfs.datanode.address": ports["data node"],
            "dfs.datanode.ipc.address": ports["calls"],
            "dfs.datanode.http.address": "127.0.0.1:0",
            "dfs.heartbeat.interval": "1s",
            "dfs.replication": "1",
        }

    def _log(self, node: str) -> Any:
        return (self._folder / f"{node}.txt").open("ab")

    def _class_path(self) -> str:
        spark = jars._spark_jars()
        version = jars._spark_jar("hadoop-client-api-*.jar").stem.removeprefix("hadoop-client-api-")
        nodes = fetched("org.apache.hadoop", "hadoop-client-minicluster", version, ["-notransitive"])
        return f"{self._folder / 'conf'}:{nodes}/*:{spark}/*"
