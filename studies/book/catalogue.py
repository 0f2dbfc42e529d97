"""The studies behind the claims of the book: what makes each ledger, how much there is to do, and for whom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.places import BOOKS, PLACE, located

KIM, SIMILARITY, GENERALIZE, ADVERSARY, NED = "distance", "prototypes", "generalize", "adversary", "confidence"


@dataclass(frozen=True)
class Study:
    """A script with its ledger.

    Args:
        name: short, unique.
        command: as typed at the prompt from the root of a clone.
        ledger: file, from the root of the tree, with a line for each finished cell; one without lines counts as one.
        cells: how many lines it has when all is finished.
        minutes: rough time from nothing on two cores.
        documents: slugs of those whose claims it serves.
        where: the lines that are this study's, by their values.
    """

    name: str
    command: str
    ledger: str
    cells: int
    minutes: float
    documents: tuple[str, ...]
    where: Mapping[str, Any] = field(default_factory=dict)

    def lines(self, root: Path = PLACE) -> list[dict[str, Any]]:
        """Its finished lines; a last one that is cut short does not count."""
        path = located(self.ledger, root)
        if not path.exists():
            return []
        if path.suffix != ".jsonl":
            return [{}]
        return [line for line in read_lines(path) if self.where.items() <= line.items()]

    def finished(self, root: Path = PLACE) -> bool:
        """Whether every cell is in the ledger."""
        return len(self.lines(root)) >= self.cells


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a ledger up to one that is not whole."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _part(script: str, part: str, cells: int, minutes: float, *documents: str, key: str = "part") -> Study:
    """A part of a script that keeps all its parts in one ledger."""
    command = f"python studies/{script}/run.py {part}"
    return Study(f"{script}-{part}", command, f"studies/{script}/ledger.jsonl", cells, minutes, documents, {key: part})


def _book(part: str, name: str, cells: int, minutes: float, document: str) -> Study:
    """A book of `nearkin benchmark`."""
    study = BOOKS[name]
    command = f"python studies/{study}/run.py {part}"
    return Study(name, command, f"studies/{study}/{name}/ledger.jsonl", cells, minutes, (document,))


STUDIES = (
    Study("dr-pictures", "python studies/dr_pictures/run.py", "studies/dr_pictures/result.json", 1, 1, (KIM,)),
    Study("separation", "python studies/separation/run.py", "studies/separation/ledger.jsonl", 57, 8, (KIM,)),
    Study(
        "distance-examples",
        "python studies/distance_examples/run.py",
        "studies/distance_examples/result.json",
        1,
        1,
        (KIM,),
    ),
    Study("nearest", "python studies/nearest/run.py", "studies/nearest/ledger.jsonl", 11, 4, (KIM,)),
    Study("plankton", "python studies/plankton/run.py", "studies/plankton/ledger.jsonl", 3, 5, (KIM,)),
    _part("fewshot", "omniglot", 6, 18, KIM, key="task"),
    _part("fewshot", "cub", 6, 38, KIM, key="task"),
    _part("fewshot", "omniglot-scaled", 1, 3, KIM, key="task"),
    _part("fewshot", "cub-scaled", 1, 8, KIM, key="task"),
    _part("fewshot", "omniglot-long", 1, 7, KIM, key="task"),
    _part("taxonomy", "cifar", 80, 20, KIM, key="task"),
    _part("taxonomy", "omniglot", 21, 29, KIM, key="task"),
    _part("taxonomy", "spaces", 15, 10, KIM, key="task"),
    _part("robustness", "toy", 4, 6, KIM),
    _part("robustness", "cifar", 15, 15, KIM),
    _part("robustness", "fashion", 12, 54, SIMILARITY, KIM),
    _part("robustness", "trades", 2, 8, KIM, SIMILARITY),
    _part("robustness", "cub", 1, 26, NED),
    _part("unified", "fashion", 22, 25, SIMILARITY),
    _part("unified", "cifar", 6, 10, SIMILARITY),
    _part("unified", "pacs", 54, 20, SIMILARITY),
    _part("unified", "speakers", 3, 10, SIMILARITY),
    _part("unified", "cub", 10, 10, SIMILARITY),
    _part("unified", "omniglot", 4, 6, SIMILARITY),
    Study("ccp-toy", "python studies/ccp_toy/run.py", "studies/ccp_toy/ledger.jsonl", 18, 8, (GENERALIZE,)),
    Study("ccp-unseen", "python studies/ccp_unseen/run.py", "studies/ccp_unseen/ledger.jsonl", 10, 3, (GENERALIZE,)),
    Study("ccp-gsp-costs", "python benchmarks/ccp_gsp_costs.py", "benchmarks/ccp_gsp_costs.jsonl", 3, 3, (GENERALIZE,)),
    Study("ccp-speed", "python benchmarks/ccp.py", "benchmarks/ccp.json", 1, 3, (GENERALIZE,)),
    Study("gsp-speed", "python benchmarks/gsp.py", "benchmarks/gsp.json", 1, 3, (GENERALIZE,)),
    Study("gap-hulls", "python studies/gap_hulls/run.py", "studies/gap_hulls/ledger.jsonl", 3, 5, (GENERALIZE,)),
    Study("cub-frozen", "python studies/cub_frozen/run.py", "studies/cub_frozen/ledger.jsonl", 51, 11, (GENERALIZE,)),
    _book("rates", "rates", 76, 16, GENERALIZE),
    _book("cub", "cub", 116, 21, GENERALIZE),
    _book("omniglot", "omniglot", 36, 19, GENERALIZE),
    _book("ablation", "ablation", 76, 16, GENERALIZE),
    Study("ccp-best", "python studies/ccp/run.py best", "studies/ccp/cub/best.json", 1, 1, (GENERALIZE,)),
    Study("gsp-toy", "python studies/gsp_toy/run.py", "docs/images/gsp-toy.png", 1, 1, (GENERALIZE,)),
    Study("gsp-tokens", "python studies/gsp_tokens/run.py", "studies/gsp_tokens/ledger.jsonl", 15, 6, (GENERALIZE,)),
    Study(
        "gsp-attributes",
        "python studies/gsp_attributes/run.py",
        "studies/gsp_attributes/ledger.jsonl",
        18,
        12,
        (GENERALIZE,),
    ),
    _book("cub", "gsp-cub", 91, 26, GENERALIZE),
    _book("all", "collage", 24, 45, GENERALIZE),
    _book("cub", "adversary-cub", 96, 28, ADVERSARY),
    _book("cifar", "adversary-cifar", 49, 23, ADVERSARY),
    *(
        Study(
            f"adversary-curves-{data}-{loss}",
            f"python studies/adversary_curves/run.py {data} --loss {loss}",
            "studies/adversary_curves/ledger.jsonl",
            4,
            minutes,
            (ADVERSARY,),
            {"data": data, "loss": loss},
        )
        for data, loss, minutes in (("cub", "triplet", 6), ("cub", "proxy-nca", 6), ("cifar", "triplet", 5))
    ),
    Study("ned-losses", "python studies/ned_losses/run.py", "studies/ned_losses/ledger.jsonl", 4, 4, (NED,)),
    Study(
        "similarity-attacks",
        "python studies/similarity_attacks/run.py --undefended",
        "studies/similarity_attacks/ledger.jsonl",
        6,
        5,
        (SIMILARITY,),
    ),
    Study("ned", "python studies/ned/run.py", "studies/ned/ledger.jsonl", 6, 40, (NED,)),
)


@dataclass(frozen=True)
class Sample:
    """Some cells of a study, to see in minutes that the book reproduces.

    Args:
        study: whose cells they are; `command` and `cells` are the sample's own.
        key: what tells cells apart.
        figures: what is compared: the places of numbers, or of lists of numbers, in a line.
        seconds: what the committed lines recorded, or the script was seen to take.
    """

    study: Study
    key: tuple[str, ...]
    figures: tuple[tuple[str, ...], ...]
    seconds: float


def _sample(
    name: str, options: str, cells: int, key: tuple[str, ...], figures: tuple[tuple[str, ...], ...], seconds: float
) -> Sample:
    [whole] = [study for study in STUDIES if study.name == name]
    command = f"{whole.command} {options}".strip()
    some = Study(name, command, whole.ledger, cells, seconds / 60, whole.documents, whole.where)
    return Sample(some, key, figures, seconds)


_MAPR = ("MAP@R",)
SAMPLES = (
    _sample("robustness-toy", '--only "1-NN, toy"', 2, ("cell", "norm"), (("SAA",), ("VAA",)), 8),
    _sample(
        "taxonomy-omniglot",
        '--only "ProxyDR, standard" --seeds 2',
        1,
        ("cell", "seed"),
        (("values", "top-1"), ("values", "MC prototypes")),
        79,
    ),
    _sample("unified-omniglot", "--seeds 1", 2, ("cell", "seed"), (("values",),), 154),
    _sample("ccp-toy", "--seeds 1", 6, ("variant", "seed"), (_MAPR, ("covering radius",)), 125),
    _sample("gsp-tokens", "--seeds 0", 3, ("pooling", "seed"), (_MAPR, ("inside another hull",)), 46),
    _sample(
        "adversary-cifar",
        '--only triplet "triplet + Soft-Adv"',
        7,
        ("recipe", "kind", "seed", "fold"),
        (_MAPR, ("P@1",)),
        180,
    ),
    _sample(
        "ned",
        '--only "omniglot clean"',
        1,
        ("data", "part"),
        (("means", "NED", "accuracy"), ("means", "NED", "ECE"), ("means", "1NN", "ECE")),
        130,
    ),
)
