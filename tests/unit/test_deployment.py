"""deploy/: the files parse, fit together, and name settings and commands that exist.

script/image builds the image and runs it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.fernet import Fernet
from django.core.management import get_commands

from catmq_site.program import ALIASES
from tests.support.environment import ROOT
from tests.support.tracked import tracked_files

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
VARIABLE = re.compile(r"\bCATMQ_[A-Z0-9_]+\b")
OF_COMMANDS = re.compile(r"CATMQ_NODE_[A-Z0-9]+_URL(_FILE)?")  # of register-node


def settings() -> set[str]:
    """Return the variables that the reference names, with those that name a file."""
    return set(
        re.findall(r"`(CATMQ_\w+)`", (ROOT / "docs/reference/settings.md").read_text())
    )


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


def objects() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def workloads() -> list[dict[str, Any]]:
    """Return the manifests that start pods."""
    return [found for found in objects() if found["kind"] in ("Deployment", "Job")]


def commands() -> Iterator[list[str]]:
    """Yield the words after `catmq-server` of everything that starts one."""
    for service in compose()["services"].values():
        if service.get("image") == "catmq-server":
            yield service["command"]
    for workload in workloads():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        yield container["args"]
    for unit in UNITS:
        (line,) = re.findall(
            r"^ExecStart=/opt/catmq/bin/catmq-server (.+)$", unit.read_text(), re.M
        )
        yield line.split()
    (words,) = re.findall(r"^CMD \[(.+)\]$", CONTAINERFILE, re.M)
    yield re.findall(r'"([^"]+)"', words)


def test_every_setting_that_is_named_exists() -> None:
    named = {
        (path, name)
        for path in tracked_files("deploy/*")
        for name in VARIABLE.findall((ROOT / path).read_text())
    }
    assert len(named) > 15
    known = settings()
    assert {
        (path, name)
        for path, name in named
        if name not in known and not OF_COMMANDS.fullmatch(name)
    } == set()


@pytest.mark.parametrize("words", [*commands()], ids=" ".join)
def test_every_command_that_is_started_exists(words: list[str]) -> None:
    command = ALIASES.get(words[0], words[0]).replace("-", "_")
    assert command in {"serve", *get_commands()}
    if command == "serve":
        supervisor = (ROOT / "catmq_site/server/supervisor.py").read_text()
        options = [word for word in words if word.startswith("--")]
        assert [name for name in options if f'"{name}"' not in supervisor] == []


def test_the_image_copies_what_the_distribution_is_made_of() -> None:
    packages = re.findall(
        r'"(\w+)\*"',
        (ROOT / "pyproject.toml").read_text().partition("packages.find")[2][:200],
    )
    assert "catmq_site" in packages
    for name in packages:
        assert f"COPY {name} {name}\n" in CONTAINERFILE
        assert f"!{name}\n" in (DEPLOY / "Containerfile.dockerignore").read_text()
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", CONTAINERFILE, re.M)
    assert CONTAINERFILE.count("\nFROM ") == 2 and "\nHEALTHCHECK " in CONTAINERFILE


def test_compose_refers_to_what_it_has(tmp_path: Path) -> None:
    parsed = compose()
    for name, service in parsed["services"].items():
        assert set(service.get("secrets", ())) <= set(parsed["secrets"]), name
        assert set(service.get("depends_on", ())) <= set(parsed["services"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), volume
            else:
                assert source in parsed["volumes"], volume
        files = [
            value.rpartition("/")[2]
            for key, value in service.get("environment", {}).items()
            if key.endswith("_FILE")
        ]
        assert set(files) <= set(service["secrets"]) if files else True, name
    brokers = [name for name in parsed["services"] if name.startswith("broker-")]
    names = [
        parsed["services"][name]["environment"]["CATMQ_BROKER_NAME"] for name in brokers
    ]
    assert names == brokers and len(brokers) == 2

    made = DEPLOY / "compose/make-secrets"
    subprocess.run([made, tmp_path / "secrets"], check=True)
    files = {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    assert set(files) == set(parsed["secrets"])
    assert {f"./secrets/{name}" for name in files} == {
        secret["file"] for secret in parsed["secrets"].values()
    }
    subprocess.run([made, tmp_path / "secrets"], check=True)
    again = {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    assert again == files
    Fernet(files["encryption-keys"].strip())


def test_pods_are_closed_and_have_what_they_mount() -> None:
    kinds = sorted(found["kind"] for found in objects())
    assert {"Deployment", "Job", "Service", "PodDisruptionBudget"} <= set(kinds)
    for workload in workloads():
        spec = workload["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in spec["volumes"]
        }
        labels = workload["spec"]["template"]["metadata"]["labels"]
        if workload["kind"] == "Deployment":
            assert workload["spec"]["selector"]["matchLabels"] == labels


def test_a_broker_has_probes_of_routes_that_exist_and_time_to_stop() -> None:
    (broker,) = [
        found for found in workloads() if found["metadata"]["name"] == "catmq-broker"
    ]
    spec = broker["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    urls = (ROOT / "brokerapi/urls.py").read_text()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = container[probe]["httpGet"]["path"].removeprefix("/")
        assert f'path("{path}", ' in urls
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    graceful = (ROOT / "catmq_site/server/gunicorn_conf.py").read_text()
    (longest_s,) = map(int, re.findall(r"^graceful_timeout = (\d+)", graceful, re.M))
    assert spec["terminationGracePeriodSeconds"] > pause_s + longest_s
    grace = compose()["services"]["broker-1"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > longest_s
    labels = broker["spec"]["template"]["metadata"]["labels"]
    by_kind = {found["kind"]: found for found in objects()}
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_kustomize_accepts_the_manifests() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on this machine")
    done = subprocess.run(
        [kubectl, "kustomize", DEPLOY / "kubernetes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    listed = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    assert len(built) == len(
        [found for found in objects() if found["kind"] != "Kustomization"]
    )
    (image,) = listed["images"]
    assert done.stdout.count(f"{image['newName']}:{image['newTag']}") == len(workloads())


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit_and_finds_it_closed(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    # The program is not installed here, and the instance of a template gets a name.
    text = unit.read_text().replace("/opt/catmq/bin/catmq-server", "/bin/true")
    copy = tmp_path / unit.name.replace("@", "@8000")
    copy.write_text(text)
    for options in (["verify"], ["security", "--offline=yes", "--threshold=20"]):
        done = subprocess.run(
            [analyze, *options, copy], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if options == ["verify"]:
            assert (done.stdout, done.stderr) == ("", "")
