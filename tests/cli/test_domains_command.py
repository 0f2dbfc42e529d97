"""The commands of domain generalisation: train with each domain held out, audit, compare, and what they refuse."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from nearkin.cli.app import app
from nearkin.data.manifest import Manifest, write_manifest

DOMAINS = ("dark", "light")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A manifest of five classes in two domains, as many items in each."""
    root, rng = tmp_path_factory.mktemp("domains"), np.random.default_rng(0)
    patterns = rng.integers(0, 256, (5, 16, 16, 3))
    paths, labels, domains = [], [], []
    for label in range(5):
        for domain in DOMAINS:
            for item in range(6):
                shade = 0.4 if domain == "dark" else 1.0
                image = np.clip(shade * patterns[label] + rng.normal(0, 25, (16, 16, 3)), 0, 255).astype(np.uint8)
                name = f"{domain}-{label}-{item}.png"
                Image.fromarray(image).save(root / name)
                paths.append(name)
                labels.append(f"class{label}")
                domains.append(domain)
    write_manifest(Manifest.from_rows(paths, labels, domain=domains), root / "table.csv")
    return root / "table.csv"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def train_without(table, tiny, domain, out):
    small = [one for one in tiny if not one.startswith("data.split")]
    changes = [*small, "data.split=domains", f"data.test_domains=[{domain}]", "data.val_items=0.34"]
    changes += ["audit.suites=[domains]", "audit.resamples=50"]
    sets = [part for change in changes for part in ("--set", change)]
    return invoke("train", table, "--recipe", "normface", "--out", out, *sets)


@pytest.fixture(scope="module")
def runs(table, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for domain in DOMAINS:
        trained = train_without(table, tiny, domain, folder / f"without-{domain}")
        assert trained.exit_code == 0, trained.output
        assert domain in trained.output
        assert "validation" in trained.output
        audited = invoke("audit", folder / f"without-{domain}", "--no-baseline")
        assert audited.exit_code == 0, audited.output
        assert f"held out: {domain}" in audited.output
    return [folder / f"without-{domain}" for domain in DOMAINS]


def test_the_audit_of_a_run_is_of_the_held_out_domain(runs):
    for path, domain in zip(runs, DOMAINS, strict=True):
        found = json.loads((path / "audit.json").read_text())
        assert found["facts"]["data"].endswith(f", domain {domain}")
        assert found["facts"]["items"] == "30"
        assert found["primary"] == "accuracy nearest proxy, held out"
        (other,) = set(DOMAINS) - {domain}
        assert found["details"]["domains"]["roles"] == {domain: "held out", other: "trained on"}


def test_runs_without_different_domains_stand_in_one_table_and_are_not_paired(runs):
    compared = invoke("compare", *runs, "--metric", "accuracy nearest proxy, held out")
    assert compared.exit_code == 0, compared.output
    assert "paired" in compared.output
    assert "points" not in compared.output


def test_a_finished_run_resumes_and_another_domain_is_another_run(table, tiny, runs):
    again = invoke("train", table, "--recipe", runs[0] / "recipe.yaml", "--out", runs[0], "--resume")
    assert again.exit_code == 0, again.output
    other = invoke(
        "train",
        table,
        "--recipe",
        runs[0] / "recipe.yaml",
        "--out",
        runs[0],
        "--resume",
        "--set",
        "data.test_domains=[light]",
    )
    assert other.exit_code
    assert "recipe" in str(other.exception)


def test_an_unknown_domain_is_refused_with_the_nearest_name(table, tiny, tmp_path):
    refused = train_without(table, tiny, "drak", tmp_path / "run")
    assert "dark" in str(refused.exception)
    assert not (tmp_path / "run").exists()


def test_a_manifest_without_domains_is_refused(photos, tiny, tmp_path):
    refused = train_without(photos, tiny, "dark", tmp_path / "run")
    assert re.search(r"\bdomain\b", str(refused.exception))
