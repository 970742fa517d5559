"""Values that cannot be meant are refused, in words that say which and what to do; files go in as they are."""

import shlex
import shutil
from pathlib import Path

import pytest

from hubbub.ids import PartyId, Role
from support.chart import (
    BROKERS,
    CHARTS,
    PARTIES,
    RELEASES,
    environment,
    of_kind,
    parties,
    render,
    run_helm,
    template,
    values_file,
)
from support.party_files import write_party_files

TRIAL, OFFICE, NORTH, CLINIC = PARTIES
OPERATOR, STATEFUL_SET = BROKERS

REFUSED = [
    (CLINIC, "trainer[0].name=clinic-a", "Additional property trainer is not allowed"),
    (CLINIC, "trainers[0].polcy.content=x", "trainers.0: Additional property polcy is not allowed"),
    (CLINIC, "trainers[1].name=clinic-b", "trainers.1: secret is required"),
    (CLINIC, "trainers[0].name=Clinic_A", "trainers.0.name: Does not match pattern"),
    (CLINIC, "broker.urls=null", "broker: urls is required"),
    (CLINIC, "broker.urls[0]=amqps://clinic-a:hush@broker.example/", "broker.urls.0: Does not match pattern"),
    (CLINIC, "broker.urls[0]=amqp://broker.example/", "write amqps://"),
    (CLINIC, "broker.proxy=http://clinic-a:hush@proxy:3128", "broker.proxy: Does not match pattern"),
    (CLINIC, "roster.content=", "the roster is missing: --set-file roster.content=roster.json"),
    (CLINIC, "networkPolicy.broker.cidrs=null", "networkPolicy.broker is missing: say where the broker is"),
    (
        CLINIC,
        "networkPolicy.broker.cidrs[0]=broker.example",
        "networkPolicy.broker.cidrs.0: Does not match pattern",
    ),
    (OFFICE, "coordinator.enabled=false", "there is nothing to install"),
    (TRIAL, "trainers[1].secret=trainer-1", "two parties share the Secret trainer-1"),
    (TRIAL, "trainers[1].name=trainer-1", "two parties are called trainer-1"),
    (TRIAL, "trialBroker.replica=3", "Additional property replica is not allowed"),
    (OFFICE, "roster.sha256=664b 0840", "roster.sha256: Does not match pattern"),
    (NORTH, "aggregators[0].polcy.content=x", "aggregators.0: Additional property polcy is not allowed"),
    (NORTH, "aggregators[0].storage.accessMode=ReadWriteMany", "aggregators.0.storage.accessMode"),
    (OFFICE, "coordinator.secret=", "coordinator.secret is missing: name the Secret"),
    (OFFICE, "coordinator.ingress.tlsSecret=", "coordinator.ingress needs host and tlsSecret"),
    (STATEFUL_SET, "cookieSecret=", "cookieSecret is missing"),
    (STATEFUL_SET, "tls.secret=", "tls.secret is missing"),
    (STATEFUL_SET, "definitionsSecret=", "definitionsSecret is missing"),
    (STATEFUL_SET, "networkPolicy.clients.cidrs=null", "networkPolicy.clients is missing"),
    (OPERATOR, "networkPolicy.kubernetesApi.cidrs=null", "networkPolicy.kubernetesApi is missing"),
    (OPERATOR, "replicas=2", "replicas: replicas must be one of the following"),
]


def test_a_value_that_cannot_be_meant_is_refused_and_named(subtests: pytest.Subtests) -> None:
    for release, given, said in REFUSED:
        with subtests.test(given):
            done = template(release, "--set", given)

            assert done.returncode != 0
            assert said in done.stderr
            assert "hush" not in done.stderr


def test_files_given_on_the_command_line_arrive_byte_for_byte(tmp_path: Path) -> None:
    roster = write_party_files(
        tmp_path, {PartyId("clinic-a"): Role.CLIENT, PartyId("north"): Role.AGGREGATOR}
    ).roster
    policy, task = tmp_path / "clinic-a.policy.toml", tmp_path / "scans.py"
    task.write_text('"""Ours: {{ not a template }}, \\n and $HOME."""\n', encoding="utf-8")

    manifests = render(
        CLINIC,
        *("--set-file", f"roster.content={roster}", "--set-file", f"trainers[0].policy.content={policy}"),
        *("--set-file", rf"trainers[0].tasks.files.scans\.py={task}"),
    )

    held = {name: text for each in of_kind(manifests, "ConfigMap") for name, text in each["data"].items()}
    for name, file in (("roster.json", roster), ("policy.toml", policy), ("scans.py", task)):
        assert held[name] == file.read_text(encoding="utf-8")
    [(_, trainer)] = parties(manifests)
    assert trainer["metadata"]["labels"]["hubbub-party"] == "clinic-a"


def test_maps_of_the_operator_s_own_take_the_place_of_those_of_the_chart() -> None:
    manifests = render(
        CLINIC,
        *("--set", "roster.existingConfigMap=our-roster", "--set", "broker.existingCaConfigMap=our-ca"),
        *("--set", "trainers[0].policy.existingConfigMap=our-policy"),
        *("--set", "trainers[0].tasks.existingConfigMap=our-tasks"),
    )

    [(_, trainer)] = parties(manifests)

    volumes = {volume["name"]: volume for volume in trainer["spec"]["template"]["spec"]["volumes"]}
    public = [source["configMap"]["name"] for source in volumes["public"]["projected"]["sources"]]
    assert (public, volumes["tasks"]["configMap"]["name"]) == (["our-roster", "our-ca", "our-policy"], "our-tasks")
    assert not of_kind(manifests, "ConfigMap")


def test_a_party_s_own_value_wins_over_the_default_also_when_it_is_false() -> None:
    chosen = "aggregatorDefaults.settingsFile=true,aggregators[0].settingsFile=false"
    manifests = render(TRIAL, "--set", chosen)

    given = {
        each["metadata"]["labels"]["hubbub-party"]: environment(each["spec"]["template"]["spec"]["containers"][0])
        for role, each in parties(manifests)
        if role == "aggregator"
    }
    assert "HUBBUB_AGGREGATOR_CONFIG_FILE" not in given["aggregator-1"]
    assert "HUBBUB_AGGREGATOR_CONFIG_FILE" in given["aggregator-2"]


def test_the_data_owner_s_trainer_has_its_gpu_data_and_task() -> None:
    [(_, trainer)] = parties(render(CLINIC))
    spec = trainer["spec"]["template"]["spec"]
    [container] = spec["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}

    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}

    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert (mounts["/data"]["name"], mounts["/data"]["readOnly"]) == ("data", True)
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "scans", "readOnly": True}
    assert environment(container)["HUBBUB_TRAINER_TASK"] == "/etc/hubbub-tasks/scans.py"
    assert volumes[mounts["/etc/hubbub-tasks"]["name"]]["configMap"]["name"] == "clinic-a-hubbub-clinic-a-tasks"


def test_an_image_of_the_organisation_s_own_takes_the_place_of_the_chart_s() -> None:
    [(_, trainer)] = parties(render(CLINIC, "--set", "trainers[0].image=registry.clinic-a.example/scans:7"))

    assert trainer["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.clinic-a.example/scans:7"


def test_a_changed_roster_restarts_a_party_and_a_changed_policy_does_not() -> None:
    def mark(*more: str) -> str:
        [(_, trainer)] = parties(render(CLINIC, *more))
        return str(trainer["spec"]["template"]["metadata"]["annotations"])

    assert mark("--set", "roster.content=another") != mark()
    assert mark("--set", "trainers[0].policy.content=another") == mark()


def read_commands(document: Path) -> list[list[str]]:
    """Every `helm install` that a document tells its reader to type."""
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.startswith("helm install ")]


@pytest.mark.parametrize("document", ["README.md", "broker/README.md"])
def test_the_commands_of_the_documents_render(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k8s").symlink_to(CHARTS)
    for release in RELEASES:
        shutil.copy(values_file(release), tmp_path)
    monkeypatch.chdir(tmp_path)
    commands = read_commands(CHARTS / document)

    for _, _, *arguments in commands:
        for name in (
            each.rpartition("=")[2] for each in arguments if each.endswith((".json", ".pem", ".toml", ".py"))
        ):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("x", encoding="utf-8")
        done = run_helm("template", *arguments)
        assert done.returncode == 0, done.stderr

    assert commands
