"""The manifests for Kubernetes on the page about clusters: valid by Kubernetes' own schemas, and of one piece."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml

from sqlext import docs
from sqlext.app.embedded import checked
from sqlext.cli import cli
from tests.kubernetes import validate

PAGE = docs.page("cluster").text
MANIFESTS: list[dict[str, Any]] = [
    each for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) for each in yaml.safe_load_all(block)
]


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = one("Deployment", "sqlext")["spec"]["template"]["spec"]
    return spec


def settings() -> dict[str, str]:
    arguments: list[str] = pod()["containers"][0]["args"]
    pairs = [each.removeprefix("--conf=").partition("=") for each in arguments if each.startswith("--conf=")]
    return {key: value for key, _, value in pairs}


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_is_valid(manifest: dict[str, Any]) -> None:
    validate(manifest)


def test_a_manifest_with_an_unknown_field_is_not() -> None:
    wrong = {**one("Service", "sqlext"), "specs": {}}
    with pytest.raises(jsonschema.ValidationError):
        validate(wrong)


def test_the_pod_is_a_command_of_ours() -> None:
    """Its arguments, with the variables that Kubernetes puts in, are accepted."""
    program, name, *arguments = pod()["containers"][0]["args"]
    assert program == "sqlext"
    command = cli.commands[name]
    given = command.make_context(name, list(arguments)).params
    assert given["connect"]
    assert (given["page"].host, given["page"].port) == ("0.0.0.0", 8080)
    assert checked(given["conf"]) == settings()
    variables = {each["name"] for each in pod()["containers"][0]["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(arguments))) <= variables


def test_the_manifests_fit_together() -> None:
    labels = one("Deployment", "sqlext")["spec"]["template"]["metadata"]["labels"]
    assert one("Deployment", "sqlext")["spec"]["selector"]["matchLabels"] == labels
    ports = {port["containerPort"] for port in pod()["containers"][0]["ports"]}
    for service in ("sqlext", "sqlext-driver"):
        assert one("Service", service)["spec"]["selector"] == labels
        assert {port["port"] for port in one("Service", service)["spec"]["ports"]} <= ports
    of_driver = {str(port["port"]) for port in one("Service", "sqlext-driver")["spec"]["ports"]}
    conf = settings()
    assert {conf["spark.driver.port"], conf["spark.driver.blockManager.port"]} == of_driver
    assert conf["spark.driver.host"].startswith("sqlext-driver.")
    account = one("ServiceAccount", "sqlext")["metadata"]["name"]
    assert pod()["serviceAccountName"] == account
    binding = one("RoleBinding", "sqlext-driver")
    assert (binding["subjects"][0]["name"], binding["roleRef"]["name"]) == (
        account,
        one("Role", "sqlext-driver")["metadata"]["name"],
    )
    assert pod()["containers"][0]["image"] == conf["spark.kubernetes.container.image"]


def test_driver_and_executors_mount_one_volume_at_one_place() -> None:
    claim = one("PersistentVolumeClaim", "sqlext-warehouse")["metadata"]["name"]
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim.warehouse"
    (volume,), (mount,) = pod()["volumes"], pod()["containers"][0]["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim == settings()[f"{prefix}.options.claimName"]
    assert mount["mountPath"] == settings()[f"{prefix}.mount.path"] == "/warehouse"
    assert mount["name"] == volume["name"]


def test_java_and_python_fit_into_the_pod() -> None:
    memory = pod()["containers"][0]["resources"]["limits"]["memory"]
    assert int(settings()["spark.driver.memory"].removesuffix("g")) + 1 < int(memory.removesuffix("Gi"))
