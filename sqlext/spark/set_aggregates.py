"""Spark's own aggregate functions over the members of an array, as Catalyst expressions."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext

from sqlext.spark.java import items_of, java_of, scala_seq


def aggregate_set(context: SparkContext, name: str, members: Any) -> Any:
    """Return the expression that runs one of Spark's own aggregate functions over the members of an array.

    A function such as sum defines, as expressions, the initial value of its buffer, the update by one value, and the result.
    These become the parts of `aggregate(array, start, merge, finish)`, so types, nulls and overflows are Spark's own.

    Args:
        name: the function's name, one of `functions.AGGREGATES_OF_SETS`.
        members: an analysed expression: an array without nulls.

    Returns:
        A Catalyst expression; if the function does not take the members' type, one that Spark's analysis refuses.
    """
    make = _Expressions(context)
    value = make.variable(members.dataType().elementType())
    function = builtin(context, name, value)
    is_of_cast = not function.checkInputDataTypes().isSuccess()
    if is_of_cast:  # sum(STRING), stddev(DECIMAL): Spark casts first, then removes duplicates
        number = make.variable(make.types.DoubleType)
        function = builtin(context, name, number)
        cast = make.catalyst.analysis.AnsiTypeCoercion.implicitCast(value, make.types.DoubleType)
        if cast.isEmpty() or not function.checkInputDataTypes().isSuccess():
            return builtin(context, name, make.first_of(members))
        members = make.distinct_of(members, make.function(cast.get(), value))
        value = number
    start = make.struct(items_of(function.initialValues()))
    buffer = make.variable(start.dataType().asNullable())
    fields = make.fields_of(buffer, items_of(function.aggBufferAttributes()))
    merge = make.struct(make.over(fields, items_of(function.updateExpressions())))
    (finish,) = make.over(fields, [function.evaluateExpression()])
    made = make.catalyst.expressions.ArrayAggregate(
        members, start, make.function(merge, buffer, value), make.function(finish, buffer)
    )
    if not is_of_cast:
        made.setTagValue(_tag(context), name)
    return made


def function_over_set(context: SparkContext, expression: Any) -> str:
    """Return the name of the function that `aggregate_set` runs over the members as they are; empty for other expressions."""
    name = expression.getTagValue(_tag(context))
    return str(name.get()) if name.isDefined() else ""


def builtin(context: SparkContext, name: str, argument: Any) -> Any:
    """Return a call of one of Spark's own functions, by name."""
    catalyst = java_of(context).org.apache.spark.sql.catalyst
    registry = catalyst.analysis.FunctionRegistry.builtin()
    return registry.lookupFunction(catalyst.FunctionIdentifier(name), scala_seq(context, [argument]))


def _tag(context: SparkContext) -> Any:
    return java_of(context).org.apache.spark.sql.catalyst.trees.TreeNodeTag("sqlext.function_over_set")


class _Expressions:
    """A factory of Catalyst expressions."""

    def __init__(self, context: SparkContext) -> None:
        java = java_of(context)
        self._context = context
        self.catalyst = java.org.apache.spark.sql.catalyst
        self.types = java.org.apache.spark.sql.types.DataTypes
        self._expressions = self.catalyst.expressions
        self._none = java.scala.Option.apply(None)
        self._unset = java.java.util.concurrent.atomic.AtomicReference
        self._text = self.types.StringType

    def variable(self, kind: Any) -> Any:
        """Return a variable for a lambda function."""
        return self._expressions.NamedLambdaVariable("x", kind, True, self._new_id(), self._unset())

    def function(self, body: Any, *variables: Any) -> Any:
        """Return a lambda function."""
        return self._expressions.LambdaFunction(body, self._seq(variables), False)

    def struct(self, fields: list[Any]) -> Any:
        named = [
            part for at, each in enumerate(fields) for part in (self._expressions.Literal.create(f"b{at}", self._text), each)
        ]
        return self._expressions.CreateNamedStruct(self._seq(named))

    def first_of(self, array: Any) -> Any:
        return self._expressions.GetArrayItem(array, self._expressions.Literal.create(0, self.types.IntegerType), True)

    def distinct_of(self, array: Any, function: Any) -> Any:
        """Return the distinct results of a function over the items."""
        return self._expressions.ArrayDistinct(self._expressions.ArrayTransform(array, function))

    def fields_of(self, struct: Any, attributes: list[Any]) -> Any:
        """Return the fields of a struct, each under the id of an attribute."""
        field = self._expressions.GetStructField
        return self._seq([self._alias(field(struct, at, self._none), each.exprId()) for at, each in enumerate(attributes)])

    def over(self, fields: Any, expressions: list[Any]) -> list[Any]:
        """Return the expressions with `fields_of` in place of the attributes."""
        named = self._seq([self._alias(each, self._new_id()) for each in expressions])
        replaced = self.catalyst.optimizer.CollapseProject.buildCleanedProjectList(named, fields)
        return [each.child() for each in items_of(replaced)]

    def _alias(self, child: Any, identity: Any) -> Any:
        nothing = self._seq([])
        return self._expressions.Alias(child, "x", identity, nothing, self._none, nothing)

    def _new_id(self) -> Any:
        return self._expressions.NamedExpression.newExprId()

    def _seq(self, items: Any) -> Any:
        return scala_seq(self._context, items)
