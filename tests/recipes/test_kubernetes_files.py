# SPDX-License-Identifier: Apache-2.0
"""The YAML files of the recipes for Kubernetes: schemas, Pod Security, and what they refer to."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pod_security
import pytest
import yaml
from cluster import Cluster

from harp import _tables
from harp.cli.printed_files import OF_AGENT
from harp.setup.command import SUCCESS

_MISSING = "no {} here: run tools/prepare --tests"
jsonschema = pytest.importorskip("jsonschema", reason=_MISSING.format("jsonschema"))
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason=_MISSING.format("kubernetes-validate")
)

FOLDER = Path(__file__).resolve().parents[2] / "docs/recipes/kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
SCHEMAS = yaml.safe_load(Path(__file__).with_name("custom_resources.yaml").read_text())
RELEASES = ("1.29", "1.37")
SYSTEM = "kube-system"  # its pods are not restricted

Object = dict[str, Any]


def objects(name: str) -> list[Object]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def templates(one: Object) -> list[Object]:
    """The pod templates of an object."""
    spec = one.get("spec", {})
    kind = one["kind"]
    if kind in ("MPIJob", "PyTorchJob"):
        replicas = spec["mpiReplicaSpecs" if kind == "MPIJob" else "pytorchReplicaSpecs"]
        return [each["template"] for each in replicas.values()]
    if kind == "TrainingRuntime":
        jobs = spec["template"]["spec"]["replicatedJobs"]
        return [job["template"]["spec"]["template"] for job in jobs]
    return [spec["template"]] if kind == "DaemonSet" else []


def schema_problems(one: Object) -> list[str]:
    """What the schemas of Kubernetes, and those of custom resources, refuse."""
    checked = [one]
    custom = SCHEMAS.get(f"{one['apiVersion']} {one['kind']}")
    try:
        if custom:
            jsonschema.validate(one["spec"], {"$defs": SCHEMAS["$defs"], **custom})
            pods = [{"metadata": {}, **copy.deepcopy(each)} for each in templates(one)]
            checked = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]
            if one["kind"] == "TrainingRuntime":
                for job in one["spec"]["template"]["spec"]["replicatedJobs"]:
                    template = {"metadata": {}, **job["template"]}
                    checked.append({"apiVersion": "batch/v1", "kind": "Job", **template})
        for each in checked:
            each["metadata"].setdefault("name", "pod")
            for release in RELEASES:
                kubernetes_validate.validate(each, release, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.SchemaNotFoundError) as wrong:
        path = "/".join(map(str, getattr(wrong, "path", ())))
        return [f"{one['kind']} {path}: {wrong.message}"]
    return []


@pytest.mark.parametrize("name", FILES)
def test_schemas_accept_file(name: str) -> None:
    for one in objects(name):
        assert schema_problems(one) == []


@pytest.mark.parametrize("name", ["daemonset.yaml", "pod.yaml"])
def test_schemas_accept_file_of_agent(name: str) -> None:
    assert schema_problems(yaml.safe_load(OF_AGENT.text(name))) == []


def change(one: Object, path: str, value: object) -> None:
    """Sets one field; a number in the path is an index."""
    *folders, last = (int(word) if word.isdecimal() else word for word in path.split("/"))
    at: Any = one
    for word in folders:
        at = at[word]
    at[last] = value


FAULTS = {
    "unknown field": ("setup-daemonset.yaml", "spec/template/spec/hostNetworks", True),
    "wrong type": ("setup-daemonset.yaml", "spec/template/spec/hostNetwork", "yes"),
    "unknown kind": ("setup-daemonset.yaml", "kind", "DemonSet"),
    "field of a pod in a job": (
        "pytorchjob-agent.yaml",
        "spec/pytorchReplicaSpecs/Master/template/spec/containers/0/volumeMounts/0/path", "/x"),
    "field of a PyTorchJob": ("pytorchjob-agent.yaml", "spec/nprocPerNode", 2),
    "replica of an MPIJob": ("mpijob-agent.yaml", "spec/mpiReplicaSpecs/Server", {}),
    "field of a job in a runtime": (
        "trainjob-host.yaml", "spec/template/spec/replicatedJobs/0/template/spec/parallel", 1),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_file_is_seen(fault: str) -> None:
    name, path, value = FAULTS[fault]
    one = copy.deepcopy(objects(name)[0])
    change(one, path, value)
    assert schema_problems(one) != []


def enforced() -> dict[str, str]:
    """The level of each namespace."""
    label = "pod-security.kubernetes.io/enforce"
    found = {one["metadata"]["name"]: one["metadata"]["labels"][label]
             for one in objects("namespaces.yaml")}  # fmt: skip
    return {**found, SYSTEM: "privileged"}


def test_pods_are_admitted_by_level_of_their_namespace() -> None:
    """No namespace has a laxer level than its pods need."""
    needed: dict[str, set[str]] = {}
    for name in FILES:
        for one in objects(name):
            for template in templates(one):
                level = pod_security.level(template["spec"])
                needed.setdefault(one["metadata"]["namespace"], set()).add(level)
    order = ["restricted", "baseline", "privileged"]
    laxest = {namespace: max(levels, key=order.index) for namespace, levels in needed.items()}
    assert laxest == enforced()


LAPSES = {
    "hostNetwork": ("hostNetwork", True),
    "hostPath": ("volumes/0/hostPath", {"path": "/run/harp"}),
    "NET_RAW": ("containers/0/securityContext/capabilities/add", ["NET_RAW"]),
    "runAsUser": ("containers/0/securityContext/runAsUser", 0),
    "allowPrivilegeEscalation": ("containers/0/securityContext/allowPrivilegeEscalation", True),
    "capabilities.drop": ("containers/0/securityContext/capabilities/drop", []),
    "seccompProfile": ("securityContext/seccompProfile/type", "Unconfined"),
}


@pytest.mark.parametrize("lapse", LAPSES)
def test_lapse_of_pod_security_is_seen(lapse: str) -> None:
    (template, _) = templates(objects("pytorchjob-agent.yaml")[0])
    spec = copy.deepcopy(template["spec"])
    assert pod_security.restricted_problems(spec) == []
    change(spec, *LAPSES[lapse])
    assert lapse in pod_security.restricted_problems(spec)


def named(kind: str) -> Iterator[tuple[str, str]]:
    """Namespace and name of each object of a kind."""
    for name in FILES:
        for one in objects(name):
            if one["kind"] == kind:
                yield one["metadata"].get("namespace", ""), one["metadata"]["name"]


@pytest.mark.parametrize("name", FILES)
def test_what_pods_refer_to_is_there(name: str) -> None:
    for one in objects(name):
        namespace = one["metadata"].get("namespace", "")
        assert namespace in ("", *enforced())
        if one["kind"] == "TrainJob":
            assert (namespace, one["spec"]["runtimeRef"]["name"]) in named("TrainingRuntime")
        for template in templates(one):
            volumes = {each["name"]: each for each in template["spec"].get("volumes", [])}
            for container in template["spec"]["containers"]:
                mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
                assert mounts <= set(volumes)
            for volume in volumes.values():
                if "configMap" in volume:
                    assert (namespace, volume["configMap"]["name"]) in named("ConfigMap")
                if "persistentVolumeClaim" in volume:
                    claim = volume["persistentVolumeClaim"]["claimName"]
                    assert (namespace, claim) in named("PersistentVolumeClaim")
            networks = template.get("metadata", {}).get("annotations", {})
            for network in networks.values():
                assert (namespace, network) in named("NetworkAttachmentDefinition")


def test_configurations_are_good() -> None:
    found = [one["data"] for name in FILES for one in objects(name) if one["kind"] == "ConfigMap"]
    assert len(found) == 2
    for data in found:
        for file, text in data.items():
            assert re.fullmatch(r"ztcp\d*\.conf", file)
            _tables.parse(text.encode(), file)


def test_network_of_multus_is_json() -> None:
    (one,) = (each for each in objects("multus.yaml") if each["kind"] != "ConfigMap")
    config = json.loads(one["spec"]["config"])
    assert config["name"] == one["metadata"]["name"]
    assert {"cniVersion", "type", "master", "ipam"} <= set(config)


def test_agents_volume_is_its_folder() -> None:
    volume, claim = (
        next(one for one in objects("agent-volume.yaml") if one["kind"] == kind)
        for kind in ("PersistentVolume", "PersistentVolumeClaim")
    )
    daemonset = yaml.safe_load(OF_AGENT.text("daemonset.yaml"))
    (run,) = daemonset["spec"]["template"]["spec"]["volumes"]
    assert volume["spec"]["hostPath"]["path"] == run["hostPath"]["path"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    reference = volume["spec"]["claimRef"]
    assert reference == {key: claim["metadata"][key] for key in ("name", "namespace")}
    allowed = daemonset["spec"]["template"]["spec"]["containers"][0]["args"]
    for name in ("pytorchjob-agent.yaml", "trainjob-agent.yaml", "mpijob-agent.yaml"):
        for template in templates(objects(name)[0]):
            assert str(template["spec"]["securityContext"]["runAsUser"]) in allowed


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder below a folder; the text of files."""
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else ""
            for path in folder.rglob("*")}  # fmt: skip


def test_daemonset_sets_up_and_undoes(cluster: Cluster) -> None:
    """Its container's command on a host: it is ready after a while, and SIGTERM, as the deletion of
    the pod sends it, takes everything back. A second start finds the set-up of a killed one."""
    (template,) = templates(objects("setup-daemonset.yaml")[0])
    (container,) = template["spec"]["containers"]
    args = [*container["command"], *container["args"]]
    args[-1] = args[-1].replace("packet:eth1", "packet:eth0")
    probe = shlex.join(container["readinessProbe"]["exec"]["command"])
    home = cluster.folder / "gpu1"
    shutil.rmtree(home / "config")
    before = tree(home)
    said = ""
    for end in (signal.SIGKILL, signal.SIGTERM):
        pod = cluster.start("gpu1", args)
        try:
            cluster.run(["gpu1"], ["sh", "-c", f"until {probe}; do sleep 0.1; done"])
            # The second start is ready before it has begun, because the node is.
            assert pod.stdout and any(line.startswith(SUCCESS) for line in pod.stdout)
            assert "device = packet:eth0" in (home / "config/ztcp0.conf").read_text()
            pod.send_signal(end)
            pod.wait(30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(pod.pid, signal.SIGKILL)
            said += pod.communicate(timeout=30)[0]
    assert tree(home) == before, said
