"""The arguments of `read_files`: those of its own, and the options of Spark's readers and of its file source."""

from __future__ import annotations

from sqlext.errors import SchemaError, did_you_mean
from sqlext.sql.file_calls import READ_FILES

OWN = ("path", "format", "schema", "schemaHints", "rescuedDataColumn")
"""The arguments that are no options of Spark's."""
USAGE = f"{READ_FILES}('/landing/orders', format => 'json')"

_OF_EVERY_FORMAT = (
    *("pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter", "basePath", "ignoreInvalidPartitionPaths"),
    *("ignoreCorruptFiles", "ignoreMissingFiles"),
)
STREAM_OPTIONS = (
    *("maxFilesPerTrigger", "maxBytesPerTrigger", "maxFileAge", "latestFirst", "fileNameOnly", "maxCachedFiles"),
    *("discardCachedInputRatio", "cleanSource", "sourceArchiveDir"),
)
"""The options of Spark's file source; a read that ends takes them too, and has no use for them."""
ONLY_BATCH = ("modifiedBefore", "modifiedAfter")
"""What Spark's file source refuses."""
_OF_TEXTS = (
    *("mode", "columnNameOfCorruptRecord", "samplingRatio", "encoding", "charset", "locale", "timeZone", "multiLine"),
    *("dateFormat", "timestampFormat", "timestampNTZFormat", "timeFormat"),
)
FORMATS = {
    "json": (
        *_OF_TEXTS,
        *("primitivesAsString", "prefersDecimal", "inferTimestamp", "dropFieldIfAllNull", "allowComments"),
        *("allowUnquotedFieldNames", "allowSingleQuotes", "allowNumericLeadingZeros", "allowNonNumericNumbers"),
        *("allowBackslashEscapingAnyCharacter", "allowUnquotedControlChars", "enableDateTimeParsingFallback", "lineSep"),
        "singleVariantColumn",
    ),
    "csv": (
        *_OF_TEXTS,
        *("header", "sep", "delimiter", "quote", "escape", "comment", "inferSchema", "enforceSchema", "preferDate"),
        *("ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nullValue", "emptyValue", "nanValue", "positiveInf"),
        *("negativeInf", "maxColumns", "maxCharsPerColumn", "charToEscapeQuoteEscaping", "unescapedQuoteHandling"),
        *("lineSep", "inputBufferSize", "columnPruning", "enableDateTimeParsingFallback"),
    ),
    "parquet": ("mergeSchema", "datetimeRebaseMode", "int96RebaseMode"),
    "orc": ("mergeSchema",),
    "avro": (
        *("avroSchema", "avroSchemaUrl", "mode", "datetimeRebaseMode", "positionalFieldMatching", "ignoreExtension"),
        *("enableStableIdentifiersForUnionType", "stableIdentifierPrefixForUnionType", "recursiveFieldMaxDepth"),
    ),
    "xml": (
        *_OF_TEXTS,
        *("rowTag", "excludeAttribute", "attributePrefix", "valueTag", "nullValue", "ignoreSurroundingSpaces"),
        *("rowValidationXSDPath", "wildcardColName", "ignoreNamespace", "inferSchema", "preferDate", "prefersDecimal"),
        "singleVariantColumn",
    ),
    "text": ("wholetext", "lineSep", "encoding"),
    "binaryFile": (),
}
"""The formats, and the options that Spark's reader of each has."""


def format_named(name: str) -> str:
    """Return the format of a name in any case.

    Raises:
        SchemaError: there is none.
    """
    found = {each.lower(): each for each in FORMATS}.get(name.lower())
    if found is None:
        raise SchemaError(
            f"{READ_FILES}: `format` is `{name}`, which is no format of files.{did_you_mean(name, FORMATS)} It reads "
            f"{', '.join(FORMATS)}."
        )
    return found


def argument_named(name: str, kind: str) -> str:
    """Return the argument of a name in any case.

    Args:
        kind: the format.

    Raises:
        SchemaError: files of this format have none of that name.
    """
    known = {each.lower(): each for each in (*OWN, *FORMATS[kind], *_OF_EVERY_FORMAT, *STREAM_OPTIONS)}
    if name.lower() in known:
        return known[name.lower()]
    if "." in name:  # a setting of Hadoop's, for the file system
        return name
    others = [each for each, options in FORMATS.items() if name.lower() in map(str.lower, options)]
    if others:
        raise SchemaError(f"{READ_FILES}: `{name}` is an option of {' and '.join(others)}, and `format` is `{kind}`.")
    raise SchemaError(
        f"{READ_FILES} has no argument `{name}`.{did_you_mean(name, known.values())} For {kind} it takes "
        f"{', '.join(known.values())}, and settings of Hadoop's file systems, in backticks, such as `fs.s3a.endpoint`."
    )
