"""`jars.py`: a script stands in for Java, so no JVM and no network is used."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sqlext.errors import SetupError
from sqlext.extension import jar_digests, jars

DELTA = importlib.metadata.version("delta-spark")
NAMES = sorted(
    f"{artifact}-{DELTA}.jar"
    for artifact in ("delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults")
)

# Answers `-version`; as Ivy it reads ivy.xml, says what Ivy says and writes JARs, in the way that FAKE_IVY names.
FAKE_JAVA = r"""
import os, pathlib, re, sys, time, zipfile
if "-version" in sys.argv:
    print(os.environ.get("FAKE_VERSION", 'openjdk version "17.0.15" 2025-04-15'), file=sys.stderr)
    sys.exit(int(os.environ.get("FAKE_EXIT", "0")))
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\n")
way = os.environ.get("FAKE_IVY", "good")
wanted = re.findall(r'org="(\S+)" name="(\S+)" rev="(\S+)" conf="\S+" transitive="false"', pathlib.Path("ivy.xml").read_text())
if way == "hang":
    time.sleep(60)
if way == "nowhere":
    for org, name, rev in wanted[:1]:
        print(f"\t\t:: {org}#{name};{rev}: not found\n\n")
    sys.exit(1)
if way == "no network":
    print("\tServer access error at url https://maven.example/x.pom (java.net.ConnectException: Connection refused)")
    sys.exit(1)
if way == "crash":
    print('Exception in thread "main" java.text.ParseException: bad settings\n\tat org.apache.ivy.Main.main(Main.java:233)')
    sys.exit(1)
for org, name, rev in wanted:
    print(f"downloading https://maven.example/{name}/{rev}/{name}-{rev}.jar ...", flush=True)
    seen, end = pathlib.Path(os.environ["FAKE_LOG"] + ".seen"), time.monotonic() + 20
    while way == "watched" and not seen.exists():
        assert time.monotonic() < end, "nobody read the line"
        time.sleep(0.01)
    print(".... (12kB)")
    with zipfile.ZipFile(f"{name}-{rev}.jar", "w") as jar:
        jar.writestr(zipfile.ZipInfo("class"), name)
    if way == "damaged":
        pathlib.Path(f"{name}-{rev}.jar").write_text("<html>Please log in")
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, with Java, Ivy and Spark played by the script and a few empty files."""
    for folder in ("java/bin", "spark/jars"):
        (tmp_path / folder).mkdir(parents=True)
    java = tmp_path / "java/bin/java"
    java.write_text(f"#!{sys.executable} -IS\n{FAKE_JAVA}")
    java.chmod(0o755)
    for name in ("spark-core_2.13-4.2.0.jar", "ivy-2.5.3.jar"):
        (tmp_path / "spark/jars" / name).touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("SQLEXT_CACHE", str(tmp_path / "a cache (mine)"))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(jar_digests, "SHA256", {})  # of no JAR that the script writes
    return tmp_path / "a cache (mine)"


def delta_folder(cache: Path) -> Path:
    return cache / "jars" / f"delta-spark_4.2_2.13-{DELTA}"


def ivy_runs(cache: Path) -> list[str]:
    log = cache.parent / "log"
    return log.read_text().splitlines() if log.exists() else []


def jars_there(cache: Path) -> list[str]:
    return sorted(jar.name for jar in delta_folder(cache).glob("*.jar"))


# Java


@pytest.mark.parametrize(
    "said",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'java version "21" 2023-09-19 LTS',
        'openjdk version "17-ea" 2021-09-14',
        'Picked up JAVA_TOOL_OPTIONS: -Dmy.version="1.8" -Xmx1g\nPicked up _JAVA_OPTIONS: -Xss4m\nopenjdk version "25.0.1"',
    ],
)
def test_java_17_and_newer_is_taken(cache: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("FAKE_VERSION", said)
    assert jars.check_java() == cache.parent / "java/bin/java"


@pytest.mark.parametrize(
    ("said", "major"),
    [('java version "1.8.0_392"', "8"), ('openjdk version "11.0.2" 2019-01-15', "11"), ('openjdk version "16-internal"', "16")],
)
def test_an_older_java_is_refused_with_its_version(cache: Path, monkeypatch: pytest.MonkeyPatch, said: str, major: str) -> None:
    monkeypatch.setenv("FAKE_VERSION", said)
    with pytest.raises(SetupError, match=rf"is Java {major}, but Spark needs 17 or newer\. Install Java 17"):
        jars.check_java()


@pytest.mark.usefixtures("cache")
def test_a_java_that_does_not_run_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VERSION", "Unable to locate\na Java Runtime.")
    monkeypatch.setenv("FAKE_EXIT", "1")
    with pytest.raises(SetupError, match="printed no version of Java: Unable to locate a Java Runtime"):
        jars.check_java()


def test_a_file_that_is_no_program_is_refused(cache: Path) -> None:
    (cache.parent / "java/bin/java").write_bytes(b"\x7fELF of another machine")
    with pytest.raises(SetupError, match=r"-version` failed: .*Exec format error.*Install Java 17"):
        jars.check_java()


@pytest.mark.usefixtures("cache")
def test_java_home_goes_before_path_even_when_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["JAVA_HOME"] + "/bin")
    monkeypatch.setenv("JAVA_HOME", "/no/such/jdk")
    with pytest.raises(SetupError, match="JAVA_HOME is `/no/such/jdk`, but there is no program `bin/java` in it"):
        jars.check_java()


def test_without_java_home_path_is_searched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(cache.parent / "java/bin"))
    assert jars.check_java() == cache.parent / "java/bin/java"
    monkeypatch.setenv("PATH", str(cache.parent))
    with pytest.raises(SetupError, match=r"Java was not found on PATH\. Install Java 17"):
        jars.check_java()


# Delta that is there already


@pytest.mark.parametrize(
    ("name", "is_delta"),
    [
        ("delta-spark_4.2_2.13-4.4.0.jar", True),
        ("delta-spark_2.13-4.0.0.jar", True),
        ("io.delta_delta-spark_4.2_2.13-4.4.0.jar", True),  # as spark.jars.packages names it
        ("delta-storage-4.4.0.jar", False),
        ("delta-spark_4.2_2.13-4.4.0.pom", False),
    ],
)
@pytest.mark.parametrize("as_folder", [True, False])
@pytest.mark.usefixtures("cache")
def test_delta_on_a_class_path_is_seen(tmp_path: Path, name: str, is_delta: bool, as_folder: bool) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).touch()
    entry = str(tmp_path / "mine" / ("*" if as_folder else name))
    assert jars.delta_on_class_path(os.pathsep.join(["/etc", "", entry])) is is_delta


@pytest.mark.usefixtures("cache")
def test_a_folder_without_a_star_or_a_missing_file_holds_no_jars(tmp_path: Path) -> None:
    (tmp_path / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert not jars.delta_on_class_path(str(tmp_path))
    assert not jars.delta_on_class_path(str(tmp_path / "gone" / "delta-spark_4.2_2.13-4.4.0.jar"))


def test_delta_among_spark_s_own_jars_is_seen(cache: Path) -> None:
    assert not jars.delta_on_class_path()
    (cache.parent / "spark/jars/delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert jars.delta_on_class_path()


# The cache


def test_the_first_call_fetches_and_the_second_does_not(cache: Path) -> None:
    told: list[str] = []
    path = jars.delta_class_path(told.append)
    assert path == str(delta_folder(cache) / "*")
    assert sorted(told) == [f"Downloading {name}" for name in NAMES]
    assert jars.delta_class_path(told.append) == path
    assert len(told) == len(NAMES)
    assert len(ivy_runs(cache)) == 1


def test_nothing_but_the_jars_and_the_marker_stays(cache: Path) -> None:
    jars.delta_class_path()
    assert sorted(file.name for file in cache.rglob("*") if file.is_file()) == ["complete", *NAMES]
    assert [file.name for file in delta_folder(cache).iterdir() if file.is_dir()] == []


def test_progress_comes_while_ivy_works(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_IVY", "watched")  # it goes on once the first line was read
    jars.delta_class_path(lambda _: (cache.parent / "log.seen").touch())
    assert jars_there(cache) == NAMES


@pytest.mark.usefixtures("cache")
def test_without_a_callback_the_log_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sqlext.extension.jars"):
        jars.delta_class_path()
    assert sorted(each for each in caplog.messages if "Downloading" in each) == [f"Downloading {name}" for name in NAMES]


@pytest.mark.parametrize("tear", ["missing jar", "short jar", "other jar", "no marker", "binary marker"])
def test_a_torn_cache_is_fetched_again(cache: Path, tear: str) -> None:
    jars.delta_class_path()
    whole = (delta_folder(cache) / NAMES[0]).read_bytes()
    match tear:
        case "missing jar":
            (delta_folder(cache) / NAMES[0]).unlink()
        case "short jar":
            (delta_folder(cache) / NAMES[0]).write_bytes(whole[:10])
        case "other jar":
            (delta_folder(cache) / NAMES[0]).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case "no marker":
            (delta_folder(cache) / "complete").unlink()
        case "binary marker":
            (delta_folder(cache) / "complete").write_bytes(b"\xff\x00")
    jars.delta_class_path()
    assert jars_there(cache) == NAMES
    assert (delta_folder(cache) / NAMES[0]).read_bytes() == whole
    assert len(ivy_runs(cache)) == 2


def test_callers_that_fetch_at_once_all_end_right(cache: Path) -> None:
    together = threading.Barrier(3)  # threads stand for processes: all they share is the folder

    def fetch(_: int) -> str:
        together.wait(timeout=20)
        return jars.delta_class_path()

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(fetch, range(3))) == {str(delta_folder(cache) / "*")}
    assert jars_there(cache) == NAMES
    runs = len(ivy_runs(cache))
    jars.delta_class_path()
    assert len(ivy_runs(cache)) == runs  # what they left is complete


@pytest.mark.parametrize(
    ("own", "xdg", "expected"),
    [("~/mine", "/xdg", "home/mine"), ("", "/xdg", "/xdg/sqlext"), ("", "", "home/.cache/sqlext"), ("here", "", "cwd/here")],
)
def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, xdg: str, expected: str) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for key, value in {"HOME": str(tmp_path / "home"), "SQLEXT_CACHE": own, "XDG_CACHE_HOME": xdg}.items():
        monkeypatch.setenv(key, value)
    assert jars._cache_folder() == tmp_path / expected  # an absolute `expected` stands alone


# What can go wrong


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("nowhere", rf"Delta's `io\.delta:delta-spark_4\.2_2\.13:{DELTA}` could not be fetched: not found in any repository\."),
        ("no network", r"`io\.delta:delta-storage:.* could not be fetched: java\.net\.ConnectException: Connection refused\."),
        ("crash", r"could not be fetched: java\.text\.ParseException: bad settings\."),
    ],
)
def test_a_failed_fetch_says_what_and_why_and_what_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch, way: str, message: str
) -> None:
    monkeypatch.setenv("FAKE_IVY", way)
    with pytest.raises(SetupError, match=message) as refusal:
        jars.delta_class_path()
    assert "needs access to Maven Central once" in refusal.value.message
    assert "spark.driver.extraClassPath" in refusal.value.message
    assert "\n" not in refusal.value.message
    assert [file for file in cache.rglob("*") if file.is_file()] == []


def test_a_jar_that_is_none_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_IVY", "damaged")
    with pytest.raises(SetupError, match=rf"`delta-spark_4\.2_2\.13-{DELTA}\.jar` arrived damaged"):
        jars.delta_class_path()
    assert jars_there(cache) == []


def test_a_jar_with_another_digest_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jar_digests, "SHA256", {NAMES[0]: "00ff"})
    with pytest.raises(SetupError, match=rf"`{re.escape(NAMES[0])}` is not the file that Maven Central has: .* and not 00ff\."):
        jars.delta_class_path()
    assert jars_there(cache) == []


def test_a_jar_that_was_put_in_its_place_with_its_note_is_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.delta_class_path()
    folder = delta_folder(cache)
    monkeypatch.setattr(jar_digests, "SHA256", {name: jar_digests._digest(folder / name) for name in NAMES})
    whole = (folder / NAMES[0]).read_bytes()
    names = [line.partition("  ")[2] for line in (folder / "complete").read_text().splitlines()]
    (folder / NAMES[0]).write_bytes(whole + b"more")
    (folder / "complete").write_text(jar_digests.inventory(folder, names))
    jars.delta_class_path()
    assert (folder / NAMES[0]).read_bytes() == whole


def test_a_jar_without_a_known_digest_is_told(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="sqlext.extension.jar_digests"):
        jars.delta_class_path()
    assert len([each for each in caplog.messages if "ships with sqlext" in each]) == len(NAMES)


def test_digests_ship_for_all_jars_of_the_tested_versions() -> None:
    assert set(NAMES) <= jar_digests.SHA256.keys()
    kafka = [f"kafka-clients-{jars._KAFKA_CLIENTS}.jar", f"commons-pool2-{jars._POOL}.jar", f"spark-avro_2.13-{jars._AVRO}.jar"]
    assert set(kafka) <= jar_digests.SHA256.keys()
    assert "spark-sql-kafka-0-10_2.13-4.2.0.jar" in jar_digests.SHA256


@pytest.mark.usefixtures("cache")
def test_ivy_is_stopped_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_IVY", "hang")
    monkeypatch.setattr(jars, "_FETCH_DEADLINE", 0.3)
    start = time.monotonic()
    with pytest.raises(SetupError, match="could not be fetched: not finished after 0 seconds"):
        jars.delta_class_path()
    assert time.monotonic() - start < 20


def test_a_callback_that_fails_stops_ivy_and_leaves_nothing(cache: Path) -> None:
    def fail(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jars.delta_class_path(fail)
    assert list(delta_folder(cache).iterdir()) == []


def test_an_ivy_settings_file_is_handed_on(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "mirror.xml").touch()
    jars.delta_class_path(ivy_settings=f"file://{tmp_path}/mirror.xml")
    assert ivy_runs(cache)[0].endswith(f"-settings {tmp_path}/mirror.xml")


@pytest.mark.usefixtures("cache")
def test_a_missing_ivy_settings_file_is_named() -> None:
    with pytest.raises(SetupError, match=r"`spark\.jars\.ivySettings` names `/no/mirror\.xml`, which is not a file"):
        jars.delta_class_path(ivy_settings="/no/mirror.xml")


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.write_text("a file where the folder belongs")
    with pytest.raises(SetupError, match=r"cannot be written: .*Not a directory\. Set SQLEXT_CACHE"):
        jars.delta_class_path()


def test_a_spark_without_its_jars_is_named(cache: Path) -> None:
    (cache.parent / "spark/jars/spark-core_2.13-4.2.0.jar").unlink()
    with pytest.raises(SetupError, match=r"There is no `spark-core_\*-\*\.jar` in"):
        jars.delta_class_path()
    (cache.parent / "spark/jars/ivy-2.5.3.jar").unlink()
    (cache.parent / "spark/jars").rmdir()
    with pytest.raises(SetupError, match=r"There is no folder of Spark's JARs at `.*spark/jars`\. Run `pip install pyspark`"):
        jars.delta_on_class_path()


@pytest.mark.usefixtures("cache")
def test_a_missing_delta_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(SetupError, match="`delta-spark` is not installed"):
        jars.delta_class_path()
