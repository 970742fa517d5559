"""The rules of Kubernetes' restricted pod security, as what is wrong with a pod."""

from collections.abc import Iterator, Mapping
from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
_SECCOMP = {"RuntimeDefault", "Localhost"}

Spec = Mapping[str, Any]


def find_violations(spec: Spec) -> list[str]:
    """Everything for which a namespace that enforces the restricted profile would refuse a pod."""
    return [*_judge_pod(spec), *(found for each in _containers(spec) for found in _judge_container(spec, each))]


def _containers(spec: Spec) -> list[Spec]:
    return [
        each
        for kind in ("initContainers", "containers", "ephemeralContainers")
        for each in spec.get(kind) or []  # All of them, whatever they are there for.
    ]


def _judge_pod(spec: Spec) -> Iterator[str]:
    for kind in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(kind):
            yield f"{kind} is set"
    for volume in spec.get("volumes") or []:
        if kinds := set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume['name']} is a {', '.join(kinds)}"
    context = spec.get("securityContext") or {}
    if context.get("sysctls"):
        yield "sysctls are set"
    yield from _judge_context("the pod", context)


def _judge_container(spec: Spec, container: Spec) -> Iterator[str]:
    name, pod = container["name"], spec.get("securityContext") or {}
    context = container.get("securityContext") or {}
    yield from _judge_context(name, context)
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield f"{name} takes a port of the host"
    if context.get("privileged"):
        yield f"{name} is privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name} may gain privileges"
    if context.get("procMount", "Default") != "Default":
        yield f"{name} sees more of /proc"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []):
        yield f"{name} does not drop all capabilities"
    if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield f"{name} adds capabilities"
    if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{name} may run as root"
    if (context.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in _SECCOMP:
        yield f"{name} has no seccomp profile"


def _judge_context(name: str, context: Spec) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield f"{name} runs as user 0"
    if context.get("runAsNonRoot") is False:
        yield f"{name} is allowed to run as root"
    if (context.get("seccompProfile") or {}).get("type", "RuntimeDefault") not in _SECCOMP:
        yield f"{name} is without seccomp"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{name} is a process of the host"
    if (context.get("seLinuxOptions") or {}).keys() & {"user", "role"}:
        yield f"{name} sets SELinux user or role"
    if (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault") not in _SECCOMP:
        yield f"{name} is without AppArmor"
