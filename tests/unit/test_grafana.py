"""The dashboard and the alert rules ask only for what real services have after a run."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # It ships no types.

from support.measured_run import measure_run

FOLDER = Path(__file__).parents[2] / "k8s" / "grafana"
DASHBOARD = json.loads((FOLDER / "hubbub.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
ROWS = [
    "Federation overview",
    "Rounds and phases",
    "Traffic",
    "Broker and queues",
    "Refusals and errors",
    "Resources",
]
COLUMNS = 24

# Prometheus adds these to whatever it scrapes.
TARGET_LABELS = {"job", "instance"}
FUNCTIONS = {"sum", "max", "count", "rate", "increase", "histogram_quantile", "time", "deriv", "abs"}
GROUPING = {"by", "on"}
OPERATORS = {"and"}
TEMPLATED = {"$__rate_interval": "5m", "$__range": "6h"}

Series = Mapping[str, dict[str, set[str]]]
"""Samples, each with its labels and the values that they have."""

TOKEN = re.compile(
    r'(?P<text>"[^"]*")|(?P<range>\[[0-9]+[smhd]\])|(?P<name>[A-Za-z_]\w*)|(?P<number>\d+(?:\.\d+)?)'
    r"|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/(){},=<>])|(?P<space>\s+)"
)


@dataclass
class Query:
    """Metrics and labels that an expression asks for."""

    metrics: list[str] = field(default_factory=list)
    matchers: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Metric, label, operator, value."""
    grouped: list[str] = field(default_factory=list)
    """Labels that something is grouped by."""
    joined: list[str] = field(default_factory=list)
    """Labels by which one thing is matched with another."""


def tokens_of(expression: str) -> list[str]:
    for name, value in TEMPLATED.items():
        expression = expression.replace(name, value)
    found, end = [], 0
    while end < len(expression):
        match = TOKEN.match(expression, end)
        assert match, f"cannot read {expression[end:]!r} of {expression!r}"
        end = match.end()
        if match.lastgroup != "space":
            found.append(match[0])
    return found


def read_query(expression: str) -> Query:
    """Read an expression, and fail on anything that this reader does not know for certain."""
    query, tokens = Query(), tokens_of(expression)
    place = 0
    while place < len(tokens):
        token, following = tokens[place], tokens[place + 1] if place + 1 < len(tokens) else ""
        place += 1
        if token in GROUPING:
            end = tokens.index(")", place)
            labels = query.grouped if token == "by" else query.joined
            labels += [each for each in tokens[place + 1 : end] if each != ","]
            place = end + 1
        elif token in FUNCTIONS:
            assert following in {"(", *GROUPING}, f"{token} is a function in {expression!r}"
        elif token.startswith("hubbub_"):
            query.metrics.append(token)
            if following == "{":
                end = tokens.index("}", place)
                query.matchers += read_matchers(token, tokens[place + 1 : end])
                place = end + 1
        else:
            assert token in OPERATORS or not re.match(r"[A-Za-z_]", token), f"what is {token} in {expression!r}?"
    assert tokens.count("(") == tokens.count(")"), expression
    assert query.metrics, f"{expression!r} asks for nothing of ours"
    return query


def read_matchers(metric: str, tokens: list[str]) -> Iterator[tuple[str, str, str, str]]:
    for start in range(0, len(tokens), 4):
        label, operator, value, *comma = tokens[start : start + 4]
        assert comma in ([], [","])
        yield metric, label, operator, value.strip('"')


# What there is -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """Every sample that any party has, with its labels and the values that they have."""
    measured = measure_run(tmp_path_factory.mktemp("federation"))
    found: dict[str, dict[str, set[str]]] = {}
    for metric in (metric for counters in measured.counters.values() for metric in counters.registry.collect()):
        # One that has not happened, such as a late message, has labels and no samples.
        found.setdefault(f"{metric.name}_total" if metric.type == "counter" else metric.name, {})
        for sample in metric.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


UNSEEN = {"hubbub_messages_late_total": {"kind"}, "hubbub_inbox_messages": set[str]()}
"""Metrics with labels that a good run does not show when it is over: nothing is late, nobody asks the broker."""


def labels_of(series: Series, metric: str) -> set[str]:
    assert metric in series, f"no party has {metric}"
    return set(series[metric]) | UNSEEN.get(metric, set()) | TARGET_LABELS


def check(expression: str, series: Series) -> None:
    query = read_query(expression)
    labels = {metric: labels_of(series, metric) for metric in query.metrics}
    for metric, label, operator, value in query.matchers:
        assert label in labels[metric], f"{metric} has no label {label}, only {sorted(labels[metric])}"
        if operator in {"=", "=~"} and label not in TARGET_LABELS:
            assert set(value.split("|")) <= series[metric][label], f"{metric} never has {label} {value!r}"
    for label in query.grouped:
        assert any(label in known for known in labels.values()), f"nothing in {expression!r} has a label {label}"
    assert set(query.joined) <= TARGET_LABELS, f"what is matched in {expression!r} belongs to different parties"


# The dashboard -----------------------------------------------------------------------------------------------

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_a_panel_asks_for_what_there_is_of_the_chosen_parties_and_shows_labels_that_are_left(
    subtests: pytest.Subtests, series: Series
) -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            with subtests.test(panel["title"]):
                check(target["expr"], series)
                query = read_query(target["expr"])
                choice = ("instance", "$instance")
                chosen = {metric for metric, label, _, value in query.matchers if (label, value) == choice}
                # What something is joined with is chosen by it.
                assert set(query.metrics) - chosen <= {"hubbub_info"}
                check_shown(r"{{(\w+)}}", target["legendFormat"], query, series)


def check_shown(pattern: str, text: str, query: Query, series: Series) -> None:
    left = set(query.grouped) if query.grouped else labels_of(series, query.metrics[0])
    assert set(re.findall(pattern, text)) <= left, text


def test_every_panel_has_its_place_its_name_and_the_chosen_data_source() -> None:
    panels, chosen = DASHBOARD["panels"], {"type": "prometheus", "uid": "${datasource}"}

    def cells(panel: dict[str, dict[str, int]]) -> set[tuple[int, int]]:
        place = panel["gridPos"]
        columns, lines = (range(place[at], place[at] + place[size]) for at, size in (("x", "w"), ("y", "h")))
        return {(x, y) for x in columns for y in lines}

    assert [panel["title"] for panel in panels if panel["type"] == "row"] == ROWS
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    assert [panel["title"] for panel in PANELS if not panel["description"]] == []
    assert all(x < COLUMNS for panel in panels for x, _ in cells(panel))
    assert not [(one["id"], other["id"]) for one, other in combinations(panels, 2) if cells(one) & cells(other)]
    asked = [panel["datasource"] for panel in PANELS]
    asked += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    assert all(each == chosen for each in asked)
    assert DASHBOARD["templating"]["list"][0]["type"] == "datasource"
    assert DASHBOARD["id"] is None


def test_the_variables_are_read_off_a_metric_that_every_party_has(series: Series) -> None:
    for variable in DASHBOARD["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((\w+)(?:{.*})?, (\w+)\)", variable["query"]["query"])
        assert match
        assert match[2] in labels_of(series, match[1])


# The alerts --------------------------------------------------------------------------------------------------

ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]


def test_a_rule_asks_only_for_what_there_is_and_says_what_to_do(subtests: pytest.Subtests, series: Series) -> None:
    for rule in ALERTS:
        with subtests.test(rule["alert"]):
            expression, annotations, labels = rule["expr"], rule["annotations"], rule["labels"]
            check(expression, series)
            assert labels["severity"] in {"warning", "critical"}
            assert annotations["summary"]
            assert annotations["description"].endswith(".")
            check_shown(r"\$labels\.(\w+)", " ".join(annotations.values()), read_query(expression), series)
            assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
            assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)


# The reader itself -------------------------------------------------------------------------------------------


def test_what_there_is_not_is_found_out(subtests: pytest.Subtests, series: Series) -> None:
    for expression in [
        "hubbub_nothing_total",
        'hubbub_ready{role="coordinator"}',
        'hubbub_rounds_total{outcome="lost"}',
        "sum by (run) (hubbub_ready)",
        "summ(hubbub_ready)",
        "sum(hubbub_ready",
        "up",
    ]:
        with subtests.test(expression), pytest.raises(AssertionError):
            check(expression, series)
