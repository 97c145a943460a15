"""The settings that the page about clusters names are Spark's; and the executors' pods that they make are valid."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.kubernetes import validate
from tests.unit.test_manifests import PAGE, settings

NAMED = sorted(set(re.findall(r"\bspark\.[a-z][\w.]*\w", PAGE, re.IGNORECASE)))
NO_SETTINGS = ("spark.sqlext.", "spark.sparkContext.", "spark.apache.org", "spark.deploy.")
BEFORE_SETTINGS = "spark.master"
"""Spark reads it before it has a registry of settings."""
BY_PREFIX = "spark.kubernetes.executor.volumes."


@pytest.fixture(scope="module")
def java(spark: SparkSession) -> Any:
    found: Any = spark._jvm
    for name in ("org.apache.spark.deploy.k8s.Config$", "org.apache.spark.deploy.yarn.config.package$"):
        found.java.lang.Class.forName(name)  # these register their settings as they are loaded
    return found


@pytest.mark.parametrize("name", [each for each in NAMED if not each.startswith((*NO_SETTINGS, BY_PREFIX, BEFORE_SETTINGS))])
def test_spark_knows_a_setting(java: Any, name: str) -> None:
    known = java.org.apache.spark.internal.config.ConfigEntry.findEntry(name)
    assert known is not None, f"Spark has no setting {name}"


def test_spark_does_not_know_another(java: Any) -> None:
    assert java.org.apache.spark.internal.config.ConfigEntry.findEntry("spark.kubernetes.container.images") is None


def test_the_pods_of_executors_are_valid(java: Any) -> None:
    """Spark's own builder makes them, without a cluster, of the settings on the page."""
    conf = java.org.apache.spark.SparkConf(False)
    for key, value in settings().items():
        conf.set(key, value.replace("$(NAMESPACE)", "flows").replace("$(POD)", "sqlext-0"))
    conf.set("spark.app.id", "spark-1").set("spark.app.name", "sqlext")
    none = java.scala.Option.empty()
    profile = getattr(getattr(java.org.apache.spark.resource, "ResourceProfile$"), "MODULE$").getOrCreateDefaultProfile(conf)
    of_executor = java.org.apache.spark.deploy.k8s.KubernetesConf.createExecutorConf(conf, "1", "spark-1", none, profile.id())
    manager = java.org.apache.spark.SparkEnv.get().securityManager()
    builder = java.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
    built = builder.buildFromFeatures(of_executor, manager, None, profile).pod()
    text = java.io.fabric8.kubernetes.client.utils.Serialization.asYaml(built.pod())
    pod = yaml.safe_load(text)
    container = java.io.fabric8.kubernetes.client.utils.Serialization.asYaml(built.container())
    pod["spec"]["containers"] = [yaml.safe_load(container)]
    validate(pod)
    (claim,) = [each for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each]
    assert claim["persistentVolumeClaim"]["claimName"] == "sqlext-warehouse"
    (mount,) = [each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["name"] == claim["name"]]
    assert mount["mountPath"] == "/warehouse"
    driver = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}["SPARK_DRIVER_URL"]
    assert driver == "spark://CoarseGrainedScheduler@sqlext-driver.flows.svc:7078"
