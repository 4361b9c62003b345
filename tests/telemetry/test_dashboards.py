"""The dashboard and the alerts ask only for what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from refdesk import errors
from refdesk.telemetry.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "refdesk.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"

OF_PROMETHEUS = {"instance", "job"}
"""Labels that the scraper adds."""

SELECTOR = re.compile(r"\b(refdesk_\w+|up)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r"\s*(\w+)\s*(=~|!=|!~|=)\s*\"((?:[^\"\\]|\\.)*)\"\s*")
GROUPING = re.compile(r"\b(?:by|on|ignoring|without) \(([^)]*)\)")


def series() -> dict[str, set[str]]:
    """Every name that can be asked for, with its labels."""
    found: dict[str, set[str]] = {"up": set()}
    for value in vars(Metrics()).values():
        metric = getattr(value, "metric", value)
        for family in metric.describe() if hasattr(metric, "_labelnames") else ():
            labels = set(metric._labelnames)
            if family.type == "histogram":
                found |= {f"{family.name}_{end}": labels for end in ("sum", "count")}
                found[f"{family.name}_bucket"] = labels | {"le"}
            else:
                found[f"{family.name}_total" if family.type == "counter" else family.name] = labels
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    for panel in panels():
        yield from ((f"panel {panel['title']}", target["expr"]) for target in panel["targets"])
    yield from ((f"alert {rule['alert']}", rule["expr"]) for rule in rules())


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_a_query_asks_for_series_and_labels_that_exist(where: str, query: str) -> None:
    known = series()
    asked = SELECTOR.findall(query)
    assert asked
    labels: set[str] = set()
    for name, matchers in asked:
        assert name in known
        labels |= known[name]
        for matcher in filter(None, re.split(r",(?=\s*\w+\s*[=!])", matchers)):
            found = MATCHER.fullmatch(matcher)
            assert found is not None, matcher
            assert found[1] in known[name] | OF_PROMETHEUS
    for grouping in GROUPING.findall(query):
        assert {label.strip() for label in grouping.split(",")} <= labels | OF_PROMETHEUS
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_a_counter_is_asked_for_its_rate_and_a_gauge_is_not(where: str, query: str) -> None:
    for found in SELECTOR.finditer(query):
        is_rate = re.search(r"(?:rate|increase)\(\s*$", query[: found.start()]) is not None
        assert is_rate == found[1].endswith(("_total", "_bucket", "_sum", "_count")), found[1]


def test_every_metric_is_somewhere_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    for value in vars(Metrics()).values():
        metric = getattr(value, "metric", value)
        if hasattr(metric, "_labelnames"):
            assert metric._name in shown


def test_whatever_fails_behind_the_desk_counts_as_a_failed_call() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    names = {kind.__name__ for kind in kinds if issubclass(kind, errors.DependencyError)} - {"DependencyError"}
    asked = [query for where, query in queries() if where in ("panel Failed calls", "alert RefdeskCallsFail")]
    assert len(asked) == 2
    for query in asked:
        counted = re.search(r'outcome=~"([^"]*)"', query)
        assert counted is not None
        assert names <= set(counted[1].split("|"))


def test_chunks_of_others_are_an_alert_at_the_first() -> None:
    [rule] = [rule for rule in rules() if "refdesk_r2r_foreign_chunks_total" in rule["expr"]]
    assert re.search(r"increase\(refdesk_r2r_foreign_chunks_total\[15m\]\)\) > 0$", rule["expr"])
    assert rule["labels"]["severity"] == "critical"
    assert "for" not in rule


def test_a_legend_names_labels_that_its_query_keeps() -> None:
    for panel in panels():
        for target in panel["targets"]:
            kept = {label.strip() for group in GROUPING.findall(target["expr"]) for label in group.split(",")}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, panel["title"]


def test_panels_stand_side_by_side_and_have_numbers_of_their_own() -> None:
    everything = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_every_alert_says_what_is_wrong_and_how_much_it_matters() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
