"""The settings that a flow or job keeps: those that define what its query means, and those that its session set for how it runs.

A setting that changes what a query means is kept by its effective value, even if nobody has set it: the default may come from the
JVM (the time zone), or change with Spark's version. Of all other settings, only those that the session itself has set are kept,
and only within namespaces of Spark and Delta that hold no secrets. A setting that is not listed here is never recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.spark import jvm

UNDEFINED = "<undefined>"
"""Spark's text for the value of a setting that has none."""

_MEANING = """
    allowNamedFunctionArguments ansi.doubleQuotedIdentifiers ansi.enabled ansi.enforceReservedKeywords ansi.relationPrecedence
    assumeAnsiFalseIfNotPersisted.enabled caseSensitive charAsVarchar chunkBase64String.enabled columnNameOfCorruptRecord
    crossJoin.enabled datetime.java8API.enabled decimalOperations.allowPrecisionLoss defaultPath groupByAliases groupByOrdinal
    icu.caseMappings.enabled lateralColumnAlias.enableImplicitResolution mapKeyDedupPolicy mapZipWithUsesJavaCollections
    operatorPipeSyntaxEnabled orderByOrdinal path.enabled pivotMaxValues preserveCharVarcharTypeInfo
    prioritizeOrdinalResolutionInSort.enabled readSideCharPadding runSQLOnFiles session.timeZone stableDerivedColumnAlias.enabled
    storeAssignmentPolicy timestampType timeType.enabled variable.substitute

    analyzer.allowSubqueryExpressionsInLambdasOrHigherOrderFunctions analyzer.lowerEmptyGroupingSetToGlobalAggregate.enabled
    analyzer.preferColumnOverLcaInArrayIndex analyzer.scalarSubqueryAllowGroupByColumnEqualToConstant
    analyzer.sqlFunctionResolution.applyConfOverrides functionResolution.sessionOrder
    collation.allowInMapKeys collation.objectLevel.enabled collation.schemaLevel.enabled
    defaultColumn.enabled defaultColumn.useNullsForMissingDefaultValues
    function.concatBinaryAsString function.eltOutputAsString
    optimizer.decorrelateExistsSubqueryLegacyIncorrectCountHandling.enabled
    optimizer.decorrelateSubqueryLegacyIncorrectCountHandling.enabled
    optimizer.decorrelateSubqueryPreventConstantHoldingForCountBug.enabled
    optimizer.enableCsvExpressionOptimization optimizer.enableJsonExpressionOptimization optimizer.metadataOnly
    optimizer.replaceExceptWithFilter parser.escapedStringLiterals parser.quotedRegexColumnNames
    parser.singleCharacterPipeOperator.enabled variant.allowDuplicateKeys variant.validateUnicodeInJsonParsing

    avro.datetimeRebaseModeInRead avro.datetimeRebaseModeInWrite csv.filterPushdown.enabled csv.parser.columnPruning.enabled
    files.ignoreCorruptFiles files.ignoreInvalidPartitionPaths files.ignoreMissingFiles
    json.enableExactStringParsing json.enablePartialResults json.filterPushdown.enabled jsonGenerator.ignoreNullFields
    jsonGenerator.writeNullIfWithDefaultValue orc.mergeSchema
    parquet.binaryAsString parquet.datetimeRebaseModeInRead parquet.datetimeRebaseModeInWrite parquet.fieldId.read.enabled
    parquet.fieldId.read.ignoreMissing parquet.ignoreVariantAnnotation parquet.inferTimestampNTZ.enabled
    parquet.int96AsTimestamp parquet.int96RebaseModeInRead parquet.int96RebaseModeInWrite parquet.int96TimestampConversion
    parquet.mergeSchema parquet.reader.respectUnknownTypeAnnotation.enabled
    parquet.respectSummaryFiles
    sources.default sources.partitionColumnTypeInference.enabled sources.partitionOverwriteMode sources.validatePartitionColumns
    xml.variant.respectInferSchema

    execution.pandas.convertToArrowArraySafely execution.pandas.inferPandasDictAsMap execution.pandas.structHandlingMode
    execution.pyspark.binaryAsBytes execution.pythonUDF.arrow.enabled execution.pythonUDF.arrow.legacy.fallbackOnUDT
    execution.pythonUDF.pandas.intToDecimalCoercionEnabled execution.pythonUDF.pandas.preferIntExtensionDtype
    execution.pythonUDTF.arrow.enabled

    shuffle.partitions streaming.aggregation.stateFormatVersion streaming.fileSource.schema.forceNullable
    streaming.fileStreamSink.ignoreMetadata streaming.flatMapGroupsWithState.skipEmittingInitialStateKeys
    streaming.flatMapGroupsWithState.stateFormatVersion streaming.join.stateFormatVersion streaming.multipleWatermarkPolicy
    streaming.noDataMicroBatches.enabled streaming.schemaInference streaming.sessionWindow.stateFormatVersion
    streaming.statefulOperator.checkCorrectness.enabled streaming.statefulOperator.useStrictDistribution
    streaming.unsupportedOperationCheck streaming.validateEventTimeWatermarkColumn
"""
"""By topic: names, types and comparison; the analyser's and optimizer's choices that change results; reading and writing of
files; Python functions; the state of a stream, whose partitions and formats cannot change while it exists."""

_LEGACY = """
    allowAutoGeneratedAliasForView allowEmptySchemaWrite allowHashOnMapType allowNegativeScaleOfDecimal
    allowNonEmptyLocationInCTAS allowNullComparisonResultInArraySort allowParameterlessCount
    allowSessionVariableInPersistedView allowStarWithSingleTableIdentifierInCount
    allowUdfParameterToShadowParameterlessFunction allowUntypedScalaUDF allowZeroIndexInFormatString
    avro.allowIncompatibleSchema bangEqualsNot castComplexTypesToString.enabled charVarcharAsString codingErrorAction
    collationAwareHashFunctions consecutiveStringLiterals.enabled createEmptyCollectionUsingStringType createHiveTableByDefault
    csv.enableDateTimeParsingFallback cteDuplicateAttributeNames ctePrecedencePolicy db2.booleanMapping.enabled
    db2.numericMapping.enabled decimal.retainFractionDigitsOnTruncate disableMapKeyNormalization doLooseUpcast
    duplicateBetweenInput earlyEvalCurrentTime execution.pandas.groupedMap.assignColumnsByName
    execution.pythonUDF.pandas.conversion.enabled execution.pythonUDTF.pandas.conversion.enabled exponentLiteralAsDecimal.enabled
    extraOptionsBehavior.enabled followThreeValuedLogicInArrayExists fromDayTimeString.enabled
    groupingIdWithAppendedUserGroupBy histogramNumericPropagateInputType identifierClause inSubqueryNullability
    inlineCTEInCommands integerGroupingId interval.enabled javaCharsets json.allowEmptyString.enabled
    json.enableDateTimeParsingFallback keepPartitionSpecAsStringLiteral literal.pickMinimumPrecision lpadRpadAlwaysReturnString
    mssqlserver.datetimeoffsetMapping.enabled mssqlserver.numericMapping.enabled mysql.bitArrayMapping.enabled
    mysql.timestampNTZMapping.enabled negativeIndexInArrayInsert noCharPaddingInPredicate nullInEmptyListBehavior
    nullValueWrittenAsQuotedEmptyStringCsv oracle.timestampMapping.enabled parameterSubstitution.constantsOnly
    parquet.nanosAsLong parquet.returnNullStructIfAllFieldsMissing parseNullPartitionSpecAsStringLiteral parseQueryWithoutEof
    parser.havingWithoutGroupByAsWhere pathOptionBehavior.enabled percentileDiscCalculation persistentCatalogFirst
    postgres.datetimeMapping.enabled readFileSourceTableCacheIgnoreOptions respectNullabilityInTextDatasetConversion
    scalarSubqueryAllowGroupByNonEqualityCorrelatedPredicate scalarSubqueryCountBugBehavior setopsPrecedence.enabled sizeOfNull
    statisticalAggregate timeParserPolicy truncateForEmptyRegexSplit typeCoercion.datetimeToString.enabled
    useCurrentConfigsForView useLegacyXMLParser v1IdentifierNoCatalog viewSchemaBindingMode viewSchemaCompensation
"""

MEANING = (*(f"spark.sql.{name}" for name in _MEANING.split()), *(f"spark.sql.legacy.{name}" for name in _LEGACY.split()))
"""Settings that change what a query means, in Spark 4.2."""

_WAYS = (
    "spark.databricks.delta.",
    "spark.sql.adaptive.",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.broadcastTimeout",
    "spark.sql.cbo.",
    "spark.sql.codegen.",
    "spark.sql.execution.",
    "spark.sql.files.",
    "spark.sql.join.",
    "spark.sql.maxBroadcastTableSize",
    "spark.sql.maxConcurrentOutputFileWriters",
    "spark.sql.objectHashAggregate.",
    "spark.sql.optimizer.",
    "spark.sql.orc.",
    "spark.sql.parquet.",
    "spark.sql.shuffle.",
    "spark.sql.sources.",
    "spark.sql.statistics.",
    "spark.sql.streaming.",
    "spark.sql.variant.",
)
"""Namespaces of settings that change how a query runs: speed, sizes, file formats."""

OWN_JOINS = {"spark.sql.crossJoin.enabled": "true"}
"""The setting for joins that no user has written, such as that of one row with another."""
ALL_FILES = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
"""Settings with which a file that is gone or cannot be read is an error; with others its rows may be left out without a word."""

TIME_ZONE = "spark.sql.session.timeZone"

_ALWAYS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Settings that each flow and job has, whatever its session says, and that are therefore not recorded."""


def recorded(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a session that a flow or job keeps."""
    application = jvm.application_settings(spark)
    own = jvm.all_settings(spark)
    redaction = jvm.redaction(spark)
    ways = {
        key: value for key, value in own.items() if key.startswith(_WAYS) and key not in _ALWAYS and application.get(key) != value
    }
    shown = {key: value for key, value in ways.items() if not redaction.is_secret(key, value) and spark.conf.isModifiable(key)}
    meaning = {key: _value(spark, key, own) for key in MEANING}
    return shown | {key: value for key, value in meaning.items() if value is not None}


def meaning_of(settings: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return those of some recorded settings that change what a query means."""
    return frozenset((key, settings[key]) for key in MEANING if key in settings)


def restore(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Apply recorded settings to a session.

    Only those that differ are set, since Spark sends all that are set along with each task.
    """
    _set(spark, _differing(spark, settings))
    pin(spark)


@contextmanager
def recorded_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply recorded settings to a session within the block, and afterwards restore the previous ones."""
    with session_settings(spark, _differing(spark, settings)):
        yield


@contextmanager
def session_settings(spark: SparkSession, values: Mapping[str, str | None]) -> Iterator[None]:
    """Set settings on a session within the block, and afterwards restore the previous ones; None: it is not set."""
    before = {key: spark.conf.get(key, None) for key in values}
    try:
        _set(spark, values)
        yield
    finally:
        _set(spark, before)


def read_all_files(spark: SparkSession) -> dict[str, str | None]:
    """Apply `ALL_FILES` to a session, and return its own settings that say otherwise; None: it has taken the default."""
    own = {key: spark.conf.get(key, None) for key in _differing(spark, ALL_FILES)}
    _set(spark, {key: ALL_FILES[key] for key in own})
    return own


def pin(spark: SparkSession) -> None:
    """Set what the session of a flow or job must not leave to others.

    Its time zone is the one in effect: that may be the JVM's, which anybody in the process may change. Timestamps have all their
    microseconds in files between its tables, as they have in Delta's own.
    """
    _set(spark, {TIME_ZONE: spark.conf.get(TIME_ZONE) or "UTC", **_ALWAYS})


def _differing(spark: SparkSession, settings: Mapping[str, str]) -> dict[str, str | None]:
    """Return those of recorded settings that a session has otherwise, and that can be set; None: it is not to be set."""
    own = jvm.all_settings(spark)
    differing = {key: value for key, value in settings.items() if _value(spark, key, own) not in (value, None)}
    return {key: None if value == UNDEFINED else value for key, value in differing.items() if spark.conf.isModifiable(key)}


def _set(spark: SparkSession, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def _value(spark: SparkSession, key: str, own: Mapping[str, str]) -> str | None:
    """Return a setting's effective value, which may be its default; None if Spark does not know the setting.

    Args:
        spark: the session.
        key: the setting's name.
        own: the settings of the session; Spark is asked for all others.
    """
    if key in own:
        return own[key]
    try:
        value = spark.conf.get(key)
    except PySparkException:
        return None
    return UNDEFINED if value is None else value
