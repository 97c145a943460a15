"""What functions written in Python get and give, as Spark's types say it.

Spark's own conversions differ: of the same result, a UDF over pickled rows makes NULL where it has not quite the type that was
declared (`EvaluatePython.makeFromJava`), and one over Arrow converts it or fails.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

_TAKEN: dict[type[DataType], type | tuple[type, ...]] = {
    BooleanType: bool,
    BinaryType: (bytes, bytearray, str),
    ArrayType: (list, tuple),
    MapType: dict,
    StructType: (list, tuple, dict),
}
"""What Spark takes for a type; of anything else it would make NULL without a word."""
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


def with_declared_type(name: str, function: Callable[..., Any], kind: DataType) -> Callable[..., Any]:
    """Return a function whose result is of the type that was declared, or an error.

    A number becomes the declared kind of number where it stays the same number: 2 is a DOUBLE, and 2.0 an INT.

    Args:
        name: the function's, for the error.

    Raises (the function that is returned):
        TypeError: the result is no such number, or of another type.
    """

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        try:
            return _converted(result, kind)
        except ValueError:
            raise TypeError(f"The function {name} returned {result!r}, which is no {kind.simpleString().upper()}.") from None

    return call


def over_array(function: Callable[[list[Any]], Any], kind: DataType) -> Callable[[pa.Array], Any]:
    """Return a function of an Arrow array that does what another one does with a list, as a UDF over pickled rows gets it.

    Args:
        function: of the list of the values that are not null.
        kind: the type of its result.
    """

    def of_array(values: pa.Array) -> Any:  # with type hints: Spark takes it for a grouped aggregate because of them
        # Spark has no public way to its conversions of single values.
        to_python: Any = ArrowTableToRowsConversion._create_converter(from_arrow_type(values.type))  # noqa: SLF001
        to_arrow: Any = LocalDataToArrowConversion._create_converter(kind)  # noqa: SLF001
        result = function([to_python(each) for each in values.drop_null().to_pylist()])
        return pa.array([to_arrow(result)], type=to_arrow_type(kind, timezone="UTC"))[0]

    return of_array


def _converted(value: Any, kind: DataType) -> Any:
    """Return a value as the type has it.

    Raises:
        ValueError: it is no such number, or of another type.
    """
    if type(value).__module__ == "numpy" or (isinstance(value, array) and isinstance(kind, ArrayType)):
        value = value.tolist()  # also of a number
    if value is None:
        return None
    if isinstance(value, array) and value.typecode == "b" and isinstance(kind, BinaryType):
        return value.tobytes()
    if isinstance(kind, StructType) and not isinstance(value, dict | list | tuple) and hasattr(value, "__dict__"):
        value = vars(value)  # as PySpark does
    if not isinstance(value, _TAKEN.get(type(kind), object)):
        if isinstance(kind, ArrayType | MapType) and kind.needConversion():
            return value  # PySpark reads any iterable or mapping then, or fails
        raise ValueError(value)
    if isinstance(kind, ArrayType) and isinstance(value, list | tuple):
        return [_converted(each, kind.elementType) for each in value]
    if isinstance(kind, MapType) and isinstance(value, dict):
        return {_converted(key, kind.keyType): _converted(each, kind.valueType) for key, each in value.items()}
    if isinstance(kind, StructType) and isinstance(value, dict):
        kinds = {field.name: field.dataType for field in kind}
        return {name: _converted(each, kinds[name]) if name in kinds else each for name, each in value.items()}
    if isinstance(kind, StructType) and isinstance(value, list | tuple) and len(value) == len(kind):
        return tuple(_converted(each, field.dataType) for each, field in zip(value, kind, strict=True))
    return _number(value, kind)


def _number(value: Any, kind: DataType) -> Any:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    bits = _BITS.get(type(kind))
    if isinstance(kind, DoubleType | FloatType):
        if not is_number:
            raise ValueError(value)
        return float(value)
    if bits is not None:
        if not is_number or value != value // 1 or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(value)
        return int(value)
    if isinstance(kind, DecimalType):
        if not is_number or isinstance(value, float):
            raise ValueError(value)
        return Decimal(value)
    return value
