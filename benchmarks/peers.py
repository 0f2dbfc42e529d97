"""nearkin beside other toolkits: features by probes of what is installed, and speed by taking turns.

    python benchmarks/peers.py             both tables (under five minutes); writes benchmarks/peers.json
    python benchmarks/peers.py --check     exit code 0 only if every bar holds
    python benchmarks/peers.py --quick     under a minute: few rounds, no large case, nothing written
    python benchmarks/peers.py --features  asks for features only, and keeps the speeds of the last full run

Absolute times on shared machines are noise, so every figure is a ratio of contenders that take turns in one run on the
same inputs; where they compute the same thing, their answers are compared first. Needs pytorch-metric-learning, faiss
and scikit-learn, which the extras `train` and `faiss` bring. The others are in `benchmarks/peers_requirements.txt`, for
an environment apart, see docs/guide/peers.md; without them their lines are missing, and nothing is written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

from bars import machine, tell
from peers_cases import OURS, measure
from peers_features import features
from peers_packages import MEASURED, missing, prepare_torchvision

RESULT = Path(__file__).with_suffix(".json")
ROUNDS = {"full": 7, "quick": 3}
LARGE = (20_000, 20)
"""Items and classes whose metrics are watched for memory."""
BARS: dict[str, tuple[str, str, float]] = {
    # figure: (meaning, direction, bar)
    "metrics, PML": ("retrieval metrics: PML's time / ours, the least of all sizes", ">=", 1.0),
    "metrics, OML": ("retrieval metrics: OML's time / ours, the least of all sizes", ">=", 1.0),
    "metrics, torchmetrics": ("retrieval metrics: torchmetrics' time / ours", ">=", 1.0),
    "search, faiss": ("exact search: faiss' time / ours", ">=", 0.6),
    "search, scikit-learn": ("exact search: scikit-learn's time / ours", ">=", 1.0),
    "losses, PML": ("losses, forward and backward: PML's time / ours, the least", ">=", 0.6),
    "memory, PML": ("metrics of 20,000 items in 20 classes: PML's peak extra MB / ours", ">=", 1.0),
}
_GROUPS = {"metrics": "P@1", "search": "exact", "losses": "forward and backward, batch"}
"""Figure to what the cases that it is taken from are named like."""
_PARTS = {
    "OML's pipelines and Lightning modules": "oml.lightning.pipelines",
    "OML's extractors": "oml.models",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail unless every bar holds")
    parser.add_argument("--quick", action="store_true", help="under a minute: few rounds, no large case")
    parser.add_argument("--features", action="store_true", help="features only; keeps the speeds of the last full run")
    arguments = parser.parse_args()
    prepared = prepare_torchvision()
    lacking = missing()
    found = features()
    _print_features(found)
    facts = {"date": date.today().isoformat(), "peers": _versions(), "features": found}
    if arguments.features:
        _write(facts, lacking)
        return 0
    speed = _speed(arguments.quick)
    memory = [] if arguments.quick else _memory()
    _print_speed(speed, memory)
    figures = _figures(speed, memory)
    held = tell(BARS, figures)
    if not arguments.quick:
        measured = {"machine": machine(), "bars": BARS, "figures": figures, "speed": speed, "memory": memory}
        _write({**facts, **measured, "left out": _left_out(prepared)}, lacking)
    least = min(line["ratio"] for line in speed if line["contender"] == "PML" and line["what"].startswith("P@1"))
    print(f"\nretrieval metrics: PML takes at least {least:.2f} times our time")
    return 1 if arguments.check and not held else 0


def _versions() -> dict[str, str]:
    return {package.distribution: package.version or "not installed" for package in MEASURED}


def _speed(quick: bool) -> list[dict[str, Any]]:
    # Imported late: what they measure may need torchvision prepared.
    from peers_measuring import cases as measuring
    from peers_steps import cases as steps

    rounds = ROUNDS["quick" if quick else "full"]
    return [line for case in (*measuring(), *steps()) if not (quick and case.large) for line in measure(case, rounds)]


def _memory() -> list[dict[str, Any]]:
    from retrieval import ours, peak_memory, pml

    return [
        {"contender": name, "extra MB": round(peak_memory(*LARGE, contender)[1], 1)}
        for name, contender in ((OURS, ours), ("PML", pml))
    ]


def _figures(speed: list[dict[str, Any]], memory: list[dict[str, Any]]) -> dict[str, float]:
    """The least ratio of a group of cases to each contender, and that of the memory."""
    found: dict[str, float] = {}
    for group, words in _GROUPS.items():
        for line in speed:
            if words in line["what"] and line["contender"] != OURS:
                name = f"{group}, {line['contender']}"
                found[name] = min(line["ratio"], found.get(name, float("inf")))
    if memory:
        extra = {line["contender"]: line["extra MB"] for line in memory}
        found["memory, PML"] = round(extra["PML"] / extra[OURS], 2)
    return found


def _left_out(prepared: str | None) -> list[list[str]]:
    """What could not be measured, and why."""
    told = [["anything on a GPU", "there is none here"]]
    for part, module in _PARTS.items():
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a package raises because something it needs is missing or too new
            told.append([part, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"])
    told.append(["encoding by OML's extractors", "their weights are downloaded from the web"])
    if prepared:
        told.append(["torchvision's operators, which nothing measured here uses", prepared])
    return told


def _write(facts: dict[str, Any], lacking: list[str]) -> None:
    if lacking:
        print(f"\nNothing was written, because these are not installed: {', '.join(lacking)}")
        return
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    text = json.dumps({**kept, **facts}, indent=2, ensure_ascii=False) + "\n"
    RESULT.write_text(text, encoding="utf-8")


def _print_features(found: list[dict[str, Any]]) -> None:
    names = list(found[0]["cells"])
    print(f"{'feature':60}" + "".join(f"{name:>14}" for name in names))
    for row in found:
        says = [cell["says"] if cell else "-" for cell in row["cells"].values()]
        print(f"{row['what']:60}" + "".join(f"{word:>14}" for word in says))


def _print_speed(speed: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
    print(f"\n{'what':86} {'contender':14} {'ms':>9} {'x ours':>7}   range")
    for line in speed:
        numbers = f"{line['milliseconds']:9.3g} {line['ratio']:7.2f}   {line['low']:.2f} to {line['high']:.2f}"
        print(f"{line['what']:86} {line['contender']:14} {numbers}")
    for line in memory:
        what = f"metrics of {LARGE[0]:,} items in {LARGE[1]} classes"
        print(f"{what:86} {line['contender']:14} {line['extra MB']:9.0f} MB extra at most")
    print()


if __name__ == "__main__":
    sys.exit(main())
