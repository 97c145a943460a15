"""The digests of the JARs that sqlext fetches, as they lie in Maven Central; whoever changes a version there changes these."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

from sqlext.errors import SetupError

logger = logging.getLogger(__name__)

SHA256 = {
    "analyticsaccelerator-s3-1.3.1.jar": "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
    "bundle-2.35.4.jar": "db4b55f24ad1b4e70f17eb1717a4de76a8dadc5a27d764be7c44ff67b2c1c677",
    "commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "hadoop-aws-3.5.0.jar": "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
    "kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "spark-avro_2.13-4.1.1.jar": "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    "spark-token-provider-kafka-0-10_2.13-4.2.0.jar": "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c",
}
"""By the name of the file. Of another version of Spark than the tested one, there may be none."""


def inventory(folder: Path, names: Sequence[str]) -> str:
    """Return a line with digest and name for each JAR, as `sha256sum` writes them.

    Raises:
        OSError: a JAR is not there.
    """
    return "".join(f"{_digest(folder / name)}  {name}\n" for name in names)


def are_sound(folder: Path, names: Sequence[str], noted: str) -> bool:
    """Return whether all JARs are there, as they were noted when they were fetched, and as sqlext knows them.

    Args:
        noted: what `inventory` returned then.
    """
    try:
        found = inventory(folder, names)
    except OSError:
        return False
    known = [line.split("  ") for line in found.splitlines()]
    return found == noted and all(SHA256.get(name, digest) == digest for digest, name in known)


def check(folder: Path, names: Sequence[str]) -> None:
    """Check JARs that have just been fetched.

    Raises:
        SetupError: one is another file than sqlext knows by that name.
    """
    for name in names:
        digest, known = _digest(folder / name), SHA256.get(name)
        if known is None:
            logger.warning("no digest of %s ships with sqlext; it is kept as fetched, with the SHA-256 digest %s", name, digest)
        elif digest != known:
            raise SetupError(
                f"`{name}` is not the file that Maven Central has: its SHA-256 digest is {digest}, and not {known}. A mirror or "
                "proxy has sent another one. Nothing of it was kept."
            )


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
