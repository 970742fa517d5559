"""Each rule of restricted pod security is noticed when it is broken."""

from copy import deepcopy
from typing import Any

import pytest

from support.pod_security import find_violations

GOOD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "service",
            "ports": [{"containerPort": 80}],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
    "volumes": [{"name": "tmp", "emptyDir": {}}],
}
IN_POD, IN_CONTAINER = ("securityContext",), ("containers", 0, "securityContext")


def test_a_restricted_pod_has_no_violations() -> None:
    assert find_violations(GOOD) == []


def test_a_broken_rule_is_found(subtests: pytest.Subtests) -> None:
    for where, key, value in [
        ((), "hostNetwork", True),
        ((), "hostPID", True),
        ((), "hostIPC", True),
        ((), "volumes", [{"name": "etc", "hostPath": {"path": "/etc"}}]),
        ((), "initContainers", [{"name": "before"}]),
        (IN_POD, "runAsNonRoot", None),
        (IN_POD, "runAsUser", 0),
        (IN_POD, "seccompProfile", None),
        (IN_POD, "seccompProfile", {"type": "Unconfined"}),
        (IN_POD, "sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
        (IN_POD, "seLinuxOptions", {"user": "system_u"}),
        (IN_POD, "appArmorProfile", {"type": "Unconfined"}),
        (IN_POD, "windowsOptions", {"hostProcess": True}),
        (IN_CONTAINER, "runAsNonRoot", False),
        (IN_CONTAINER, "runAsUser", 0),
        (IN_CONTAINER, "privileged", True),
        (IN_CONTAINER, "allowPrivilegeEscalation", None),
        (IN_CONTAINER, "procMount", "Unmasked"),
        (IN_CONTAINER, "capabilities", {"drop": ["NET_RAW"]}),
        (IN_CONTAINER, "capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        (("containers", 0, "ports", 0), "hostPort", 80),
    ]:
        with subtests.test(where=where, key=key, value=value):
            spec: Any = deepcopy(GOOD)
            place = spec
            for step in where:
                place = place[step]

            place[key] = value

            assert find_violations(spec)
