# SPDX-License-Identifier: Apache-2.0
"""The alert rules, the dashboard and the other files of `harp exporter file`: they name metrics
that there are, and the rules fire for the faults that they name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harp.cli.printed_files import OF_EXPORTER
from harp.observe import metrics, statfile
from harp.observe.flow_sums import Readings
from harp.testing import _engine

yaml = pytest.importorskip("yaml")

FILES = OF_EXPORTER.folder
RULE_TESTS = Path(__file__).with_name("alerts_test.yaml")
METRIC = re.compile(r"\bharp_\w+")
needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here")


@pytest.fixture
def known(folders: Path) -> Iterator[dict[str, set[str]]]:
    """The labels of each metric of a process with a flow."""
    file = _engine.StatFile(job=b"j")
    file.flow(0, state=1, srtt_us=1, min_rtt_us=1, direction="S", message_times_ns=[1])
    found: dict[str, set[str]] = {}
    for family in metrics.families(statfile.scan([folders / "run"]), Readings()):
        for name, labels, _ in family.samples:
            found.setdefault(name, set()).update(labels)
    yield found
    file.close()


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    return dict(json.loads((FILES / "dashboard.json").read_text()))


def queries() -> list[str]:
    of_panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    variables = [
        one["definition"] for one in dashboard()["templating"]["list"] if one["type"] == "query"
    ]
    return [rule["expr"] for rule in rules()] + of_panels + variables


def label_problems(query: str, known: dict[str, set[str]]) -> list[str]:
    """Metrics that there are not, and labels that none of the query's metrics has."""
    named = METRIC.findall(query)
    problems = [f"there is no {name}" for name in named if name not in known]
    have = set().union(*(known.get(name, set()) for name in named))
    labels = re.findall(r"(\w+)=~?\"", query) + re.findall(r"label_values\(.*, (\w+)\)", query)
    for group in re.findall(r"\bby \(([^)]*)\)", query):
        labels += re.split(r",\s*", group)
    return problems + [f"no metric has the label {name}" for name in labels if name not in have]


def test_rules_and_dashboard_name_metrics_and_labels_that_exist(
    known: dict[str, set[str]],
) -> None:
    found = queries()
    assert len(found) > 25 and all(METRIC.search(query) for query in found)
    assert [problem for query in found for problem in label_problems(query, known)] == []


def test_planted_names_are_found(known: dict[str, set[str]]) -> None:
    assert label_problems("sum by (hots) (rate(harp_links_total[5m]))", known) == [
        "there is no harp_links_total",
        "no metric has the label hots",
    ]


def test_dashboard_is_as_grafana_wants_it() -> None:
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    used = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24 and panel["title"] and panel["description"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & used, panel["title"]
        used |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    variables = {one["name"] for one in board["templating"]["list"]}
    named = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(board)))
    assert named == variables == {"datasource", "job_id", "host"}


def test_each_rule_has_words_and_a_test() -> None:
    tests = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    fire = {
        re.findall(r'alertname="(\w+)"', sample["labels"])[0]
        for test in tests
        for one in test["promql_expr_test"]
        for sample in one["exp_samples"]
    }
    assert fire == {rule["alert"] for rule in rules()}
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "remedy"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert shown <= grouped, rule["alert"]


@needs_promtool
@pytest.mark.parametrize(
    "args", [["check", "rules", str(FILES / "alerts.yaml")], ["test", "rules", str(RULE_TESTS)]]
)
def test_promtool_accepts_rules(args: list[str]) -> None:
    run = subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


@needs_promtool
def test_promtool_accepts_scrape_configuration(tmp_path: Path) -> None:
    for name in ("scrape.yaml", "alerts.yaml"):
        (tmp_path / name).write_text(OF_EXPORTER.text(name))
    run = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "scrape.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", OF_EXPORTER.names)
def test_files_are_printed(harp: Any, name: str) -> None:
    text = harp("exporter", "file", name).stdout
    assert "@HARP@" not in text
    if name.endswith(".service"):
        assert f"ExecStart={sys.executable} -m harp exporter $EXPORTER_OPTIONS" in text
    else:
        assert text == (FILES / name).read_text()
