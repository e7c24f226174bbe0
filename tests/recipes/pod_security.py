# SPDX-License-Identifier: Apache-2.0
"""The Pod Security Standards of Kubernetes, as far as the recipes' pods can break them."""

from __future__ import annotations

from typing import Any

# Of the level baseline.
_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
# Of the level restricted.
_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def baseline_problems(spec: dict[str, Any]) -> list[str]:
    """What the level baseline forbids in a pod's spec."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += ["hostPath" for volume in spec.get("volumes", []) if "hostPath" in volume]
    for container in _containers(spec):
        security = container.get("securityContext", {})
        found += ["privileged"] if security.get("privileged") else []
        added = set(security.get("capabilities", {}).get("add", []))
        found += sorted(added - _CAPABILITIES)
        found += ["hostPort" for port in container.get("ports", []) if port.get("hostPort")]
    return found


def restricted_problems(spec: dict[str, Any]) -> list[str]:
    """What the level restricted forbids in a pod's spec, with what baseline forbids."""
    found = baseline_problems(spec)
    for volume in spec.get("volumes", []):
        found += sorted(set(volume) - {"name"} - _VOLUMES)
    of_pod = spec.get("securityContext", {})
    for container in _containers(spec):
        own = container.get("securityContext", {})
        both = {**of_pod, **own}
        capabilities = own.get("capabilities", {})
        wrong = {
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "runAsNonRoot": both.get("runAsNonRoot") is not True,
            "runAsUser": both.get("runAsUser") == 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "capabilities.drop": "ALL" not in capabilities.get("drop", []),
            "capabilities.add": bool(set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}),
        }
        found += [name for name, is_wrong in wrong.items() if is_wrong]
    return found


def level(spec: dict[str, Any]) -> str:
    """The strictest level that admits the pod."""
    if not restricted_problems(spec):
        return "restricted"
    return "privileged" if baseline_problems(spec) else "baseline"
