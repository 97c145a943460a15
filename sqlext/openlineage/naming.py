"""The names of datasets, by OpenLineage's specification ("Naming Conventions"): a namespace, and a name in it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_OBJECT_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "abfs": "abfss",
    "abfss": "abfss",
    "wasb": "wasbs",
    "wasbs": "wasbs",
}
_KAFKA_PORT = 9092
_URI = re.compile(r"([A-Za-z][\w+.-]*):(?://([^/]*))?((?:/.*)?)", re.DOTALL)
"""Scheme, authority and path of a location. Hadoop writes paths without escapes: a `#`, `?` or `%` is part of a name."""


@dataclass(frozen=True)
class DatasetName:
    """The name of a dataset."""

    namespace: str
    name: str


def of_location(location: str) -> DatasetName:
    """Return the name of the files at a location.

    >>> of_location("file:/tmp/shop/sales")
    DatasetName(namespace='file', name='/tmp/shop/sales')
    >>> of_location("s3a://shop/warehouse/sales/")
    DatasetName(namespace='s3://shop', name='warehouse/sales')
    >>> of_location("abfss://data@account.dfs.core.windows.net/sales")
    DatasetName(namespace='abfss://data@account.dfs.core.windows.net', name='sales')
    >>> of_location("hdfs://nodes:8020/warehouse/sales")
    DatasetName(namespace='hdfs://nodes:8020', name='/warehouse/sales')
    """
    match = _URI.fullmatch(location)
    if match is None:
        return DatasetName("file", location.rstrip("/") or "/")
    scheme, place, path = match[1].lower(), match[2] or "", match[3]
    if scheme in _OBJECT_STORES:
        return DatasetName(f"{_OBJECT_STORES[scheme]}://{place}", path.strip("/") or "/")
    if scheme == "file":
        return DatasetName(f"file://{place}" if place else "file", path.rstrip("/") or "/")
    return DatasetName(f"{scheme}://{place}", path.rstrip("/") or "/")


def of_topics(servers: str, topics: str) -> tuple[DatasetName, ...]:
    """Return the names of Kafka's topics.

    Args:
        servers: the brokers, as `kafka.bootstrap.servers` has them.
        topics: as `subscribe`, `subscribePattern` or `assign` has them.

    >>> of_topics("one:9092,two:9092", "orders, items")
    (DatasetName(namespace='kafka://one:9092', name='orders'), DatasetName(namespace='kafka://one:9092', name='items'))
    """
    first = servers.split(",")[0].strip()
    namespace = f"kafka://{first if ':' in first else f'{first}:{_KAFKA_PORT}'}"
    names = [*json.loads(topics)] if topics.startswith("{") else [each.strip() for each in topics.split(",")]
    return tuple(DatasetName(namespace, name) for name in names if name)


def of_table(catalog: str, name: tuple[str, ...]) -> DatasetName:
    """Return the name of a table in its catalog, without Spark's own catalog.

    Args:
        catalog: the namespace of the catalog, see `of_catalog`.
        name: catalog, schema and table.

    >>> of_table("hive://metastore:9083", ("spark_catalog", "shop", "sales"))
    DatasetName(namespace='hive://metastore:9083', name='shop.sales')
    """
    parts = name[1:] if len(name) > 1 and name[0] == "spark_catalog" else name
    return DatasetName(catalog, ".".join(parts))


def of_catalog(warehouse: str, metastores: str = "") -> str:
    """Return the namespace of Spark's catalog: that of its metastore, or without one the warehouse.

    >>> of_catalog("file:/srv/warehouse/"), of_catalog("s3a://w", "thrift://one:9083,thrift://two:9083")
    ('file:/srv/warehouse', 'hive://one:9083')
    """
    first = metastores.split(",")[0].strip()
    return f"hive://{urlsplit(first).netloc}" if first else unquote(warehouse).rstrip("/")
