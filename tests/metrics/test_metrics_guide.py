"""The examples of the guide to metrics, and those of the README that need no model, run as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from nearkin.audits import suites
from nearkin.metrics.retrieval import choose_metrics
from nearkin.recipe import AuditSection
from nearkin.search import rerankers

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "metrics.md"


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def run(page, parts):
    names = {}
    for part in parts:
        exec(compile(part, str(page), "exec"), names)
    return names


def test_the_examples_of_the_guide_run():
    names = run(GUIDE, blocks(GUIDE, "python"))
    assert 0.2 < names["result"].values["MAP@R"] < 0.9
    assert names["low"] < names["result"].values["MAP@R"] < names["high"]
    assert names["intervals"]["MAP@R"] == (names["low"], names["high"])
    assert set(names["quick"].values) == {"P@1", "Recall@100"}
    assert names["quick"].values["P@1"] == names["result"].values["P@1"]
    assert {"MAP@5", "MAP@20", "Recall@10", "kNN-Acc"} <= set(names["other"].values)
    # The same queries among the same items: leaving out one's own index is leave-one-out.
    chosen = names["result"].per_query["MAP@R"][names["some"]]
    assert names["same"].per_query["MAP@R"].tolist() == chosen.tolist()
    assert names["split"].values != names["same"].values


def test_the_guide_explains_every_metric_that_is_computed_unasked():
    table = GUIDE.read_text(encoding="utf-8")
    for metric in choose_metrics(None, (1,), (10,), 5):
        name = re.sub(r"^(MAP|Recall)@\d+$", r"\1@k", metric.name)
        assert f"| `{name}` |" in table


def test_the_audits_of_the_guide_can_be_asked_for():
    commands = re.findall(r"^nearkin audit (.*)$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        for name in re.search(r"--suite (\S+)", command)[1].split(","):
            assert name in suites
    assert re.search(r"--rerank (\S+)", commands[1])[1] in rerankers
    (recipe,) = blocks(GUIDE, "yaml")
    assert AuditSection.model_validate(yaml.safe_load(recipe)["audit"]).recall_at == [1, 10, 100]


@pytest.mark.parametrize("name", ["guide/metrics.md", "guide/verification.md", "guide/runs.md"])
def test_the_suites_of_an_audit_are_given_once_with_commas(name):
    """The option is not repeatable: a second `--suite` would silently replace the first."""
    for command in re.findall(r"^nearkin audit .*$", (ROOT / "docs" / name).read_text(encoding="utf-8"), flags=re.M):
        assert command.count("--suite") <= 1


def test_the_lines_of_the_readme_on_ones_own_embeddings_run():
    page = ROOT / "README.md"
    (block,) = (part for part in blocks(page, "python") if "retrieval_metrics" in part)
    names = run(page, [block])
    assert names["intervals"]["MAP@R"][0] <= names["found"].values["MAP@R"] <= names["intervals"]["MAP@R"][1]
