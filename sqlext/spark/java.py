"""Java classes and collections from Python, in few round trips.

For each part of `jvm.org.apache.spark..`, Py4J asks Java whether it is a class: seven round trips for one name. And Py4J learns
from a Java exception that a collection has no more items, which PySpark then compares with twelve classes. A statement that costs
thousands of such trips takes seconds.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember
from pyspark import SparkContext
from pyspark.sql import SparkSession


class _Class(JavaClass):  # type: ignore[misc]  # py4j has no types
    """A Java class that asks once for each of its methods and nested classes; fields are not cached, since values may change."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaClass):
            found = _Class(f"{self._fqn}${name}", self._gateway_client)
        if isinstance(found, (JavaClass, JavaMember)):
            self.__dict__[name] = found
        return found


class _Package:
    """A Java package: a name in it that begins with a capital letter is a class, any other name a package."""

    def __init__(self, prefix: str, client: Any) -> None:
        self._prefix = prefix
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        full = self._prefix + name
        found = _Class(full, self._client) if name[0].isupper() else _Package(full + ".", self._client)
        self.__dict__[name] = found
        return found


def java_of(spark: SparkSession | SparkContext) -> Any:
    """Return the root of all packages. A class is not looked up before it is used."""
    return _root(_client_of(spark))


def _client_of(spark: SparkSession | SparkContext) -> Any:
    context = spark if isinstance(spark, SparkContext) else spark.sparkContext
    return context._gateway._gateway_client  # type: ignore[union-attr]


@functools.lru_cache(maxsize=1)  # a process has one JVM
def _root(client: Any) -> Any:
    return _Package("", client)


_answers = threading.local()


def kept(answer: Any) -> Any:
    """Keep alive and return a Java object that goes back to Java, as the result of a call or as the exception it throws.

    When Python releases an object, Py4J notifies Java over another connection, and Java forgets the object. That may happen
    before Java has read the result, which is null then. So the object is kept until the thread returns its next result.
    """
    _answers.last = answer
    return answer


def items_of(seq: Any) -> list[Any]:
    """Return the items of a Scala Seq."""
    return [seq.apply(at) for at in range(seq.length())]


def scala_seq(spark: SparkSession | SparkContext, items: Sequence[Any]) -> Any:
    """Return a Scala Seq of Java objects, strings or numbers."""
    seq = _empty(_client_of(spark))
    for item in reversed(items):
        seq = seq.prepended(item)
    return seq


@functools.lru_cache(maxsize=1)
def _empty(client: Any) -> Any:
    return _object(client, "scala.collection.immutable.Nil")


def java_array(spark: SparkSession | SparkContext, kind: Any, items: Sequence[Any]) -> Any:
    """Return a Java array of a class, with Java objects or strings."""
    context = spark if isinstance(spark, SparkContext) else spark.sparkContext
    array = context._gateway.new_array(kind, len(items))  # type: ignore[union-attr]
    for at, item in enumerate(items):
        array[at] = item
    return array


def texts_of(spark: SparkSession | SparkContext, scala_map: Any) -> dict[str, str]:
    """Return a Scala map of strings, or an array of pairs of strings, as a dictionary, in one round trip."""
    return dict(json.loads(_mapper(_client_of(spark)).writeValueAsString(scala_map)))


@functools.lru_cache(maxsize=1)
def _mapper(client: Any) -> Any:
    mapper = _root(client).com.fasterxml.jackson.databind.ObjectMapper()
    return mapper.registerModule(_object(client, "com.fasterxml.jackson.module.scala.DefaultScalaModule"))


def scala_object(spark: SparkSession | SparkContext, name: str) -> Any:
    """Return a Scala object, by its full name."""
    return _object(_client_of(spark), name)


def _object(client: Any, name: str) -> Any:
    """Return a Scala object, by its full name."""
    return getattr(_Class(f"{name}$", client), "MODULE$")


class _PartialFunction:
    """A function over Catalyst nodes, as a Scala PartialFunction; the first error ends it, and is kept."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.error: Exception | None = None

    def isDefinedAt(self, node: Any) -> bool:
        return True

    def apply(self, node: Any) -> Any:
        if self.error is None:
            try:
                return kept(self._function(node))
            except Exception as error:  # noqa: BLE001  # an error must not pass through Java: it would come out as another one
                self.error = error
        return kept(node)

    def applyOrElse(self, node: Any, otherwise: Any) -> Any:
        return self.apply(node)

    class Java:
        implements = ("scala.PartialFunction",)


def transformed(transform: Callable[[Any], Any], function: Callable[[Any], Any]) -> Any:
    """Return the result of a `transform..` method of Catalyst with a Python function.

    Args:
        transform: the method of a plan or an expression.
        function: takes a node and returns its replacement, or the node itself.
    """
    proxy = _PartialFunction(function)
    changed = transform(proxy)
    if proxy.error is not None:
        raise proxy.error
    return changed


def field_of(java_object: Any, name: str) -> Any:
    """Return the value of a field of a Java object, also of a private one."""
    return _field(java_object, name).get(java_object)


def set_field(java_object: Any, name: str, value: Any) -> None:
    """Set a non-final field of a Java object, also a private one."""
    _field(java_object, name).set(java_object, value)


def _field(java_object: Any, name: str) -> Any:
    kind = java_object.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if field.getName() == name:
                field.setAccessible(True)
                return field
        kind = kind.getSuperclass()
    raise AttributeError(f"{java_object.getClass().getName()} has no field {name}")
