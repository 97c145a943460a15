"""A clock of Spark's by which a thread waits until it is told to go on, however long that takes, and uses no processor meanwhile.

Spark's own clocks look at the time again and again: its manual clock a hundred times a second, so that eighty queries at rest
take a tenth of a core. A stream's trigger takes any `Clock`, an interface; this one is made of the JDK's method handles.

Relies on Spark's private side: org.apache.spark.util.Clock. Checked with Spark 4.2.
"""

from __future__ import annotations

import functools
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from sqlext.spark.java import java_array, java_of


class WaitingClock:
    """See the module's docstring. Any thread may call it.

    An interrupt ends a wait without an error: a stream that is stopped sees by its own state that it is to end.

    Args:
        spark: any session of the application.

    Attributes:
        java: the clock. Its time is always 0, so that no micro-batch seems to take longer than the trigger's interval.
    """

    def __init__(self, spark: SparkSession) -> None:
        java = java_of(spark)
        self._told = java.java.util.concurrent.Semaphore(0)
        answer, kind, kinds = _answers(spark.sparkContext)
        invocations = java.java.lang.Class.forName("java.lang.reflect.InvocationHandler")
        handler = java.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(invocations, answer.bindTo(self._told))
        self.java: Any = java.java.lang.reflect.Proxy.newProxyInstance(kind.getClassLoader(), kinds, handler)

    def go_on(self) -> None:
        """End the wait, or the next one if there is none now."""
        self._told.drainPermits()
        self._told.release()


@functools.lru_cache(maxsize=1)  # a process has one JVM
def _answers(context: SparkContext) -> tuple[Any, Any, Any]:
    """Return what computes the results of a clock, and the clock's class, alone and in an array.

    The first is a method handle from a semaphore and an invocation of the clock, as of an InvocationHandler, to the result:
    `if (method is waitTillTime) try { semaphore.acquire() } catch (InterruptedException e) {}; return 0L`
    """
    java = java_of(context)
    handles, kinds_of, lang = java.java.lang.invoke.MethodHandles, java.java.lang.invoke.MethodType.methodType, java.java.lang
    named = lang.Class.forName
    clock, semaphore, interrupted = map(
        named, ("org.apache.spark.util.Clock", "java.util.concurrent.Semaphore", "java.lang.InterruptedException")
    )
    anything, method, anythings = map(named, ("java.lang.Object", "java.lang.reflect.Method", "[Ljava.lang.Object;"))
    nothing, truth = java.java.lang.Void.TYPE, java.java.lang.Boolean.TYPE

    def array(*classes: Any) -> Any:
        return java_array(context, lang.Class, classes)

    lookup = handles.publicLookup()
    invocation = array(anything, method, anythings)
    zero = handles.constant(lang.Long.TYPE, 0)
    acquire = lookup.findVirtual(semaphore, "acquire", kinds_of(nothing))
    waited = handles.catchException(acquire, interrupted, handles.empty(kinds_of(nothing, interrupted)))
    waits = handles.dropArguments(handles.filterReturnValue(waited, zero), 1, invocation)
    tells = handles.dropArguments(zero, 0, array(semaphore, anything, method, anythings))
    (wait,) = (each for each in clock.getMethods() if each.getName() == "waitTillTime")
    equals = lookup.findVirtual(method, "equals", kinds_of(truth, anything)).bindTo(wait).asType(kinds_of(truth, method))
    is_wait = handles.dropArguments(equals, 0, array(semaphore, anything))
    answer = handles.guardWithTest(is_wait, waits, tells)
    return answer.asType(answer.type().changeReturnType(anything)), clock, array(clock)
