"""Tables of the fair comparisons that studies keep as books of `nearkin benchmark`."""

from __future__ import annotations

import csv
import json
from functools import partial

from generators.markdown import difference_in_points, table
from studies.places import book_folder


def _book(name: str) -> str:
    """The table of a book, in percent and points."""
    rows = _rows(name, "table.csv")

    def value(row: dict[str, str], key: str) -> str:
        if not row[key]:
            return "–"
        mean, low, high = (f"{100 * float(row[part]):.1f}" for part in (key, f"{key}_low", f"{key}_high"))
        return f"{mean} ({low} to {high})"

    def difference(row: dict[str, str], kind: str) -> str:
        key = f"{kind}_difference"
        if not row[key]:
            return ""
        return difference_in_points(*(float(row[f"{key}{end}"]) for end in ("", "_low", "_high", "_p")))

    header = ("", "MAP@R", "difference", "concatenated", "difference", "P@1", "validation")
    return table(
        header,
        (
            (
                row["recipe"],
                value(row, "separate_MAP@R"),
                difference(row, "separate"),
                value(row, "concatenated_MAP@R"),
                difference(row, "concatenated"),
                value(row, "separate_P@1"),
                f"{100 * float(row['validation_MAP@R']):.1f}" if row["validation_MAP@R"] else "–",
            )
            for row in rows
        ),
    )


def _best() -> str:
    """Each method of the book `cub` at the learning rate that its validation folds choose."""
    rows = json.loads((book_folder("cub") / "best.json").read_text())
    return table(
        ("", "against", "difference", "concatenated"),
        (
            (
                row["method"],
                row["plain"],
                *(difference_in_points(*row[kind].values()) for kind in ("separate", "concatenated")),
            )
            for row in rows
        ),
    )


def _recalls(name: str) -> str:
    """The metrics of Al-Kaabi et al. of a book's single models, and paired differences of Recall@1, in percent."""
    rows, differences = (_rows(name, file) for file in ("table.csv", "recall.csv"))
    ends = ("difference", "low", "high", "p")
    told = {line["recipe"]: [float(line[end]) for end in ends] for line in differences if " + " not in line["to"]}
    others = ("Recall@2", "Recall@4", "Recall@8", "kNN-Acc")

    def percent(row: dict[str, str], *keys: str) -> str:
        first, *ends = (f"{100 * float(row[f'separate_{key}']):.1f}" for key in keys if row[f"separate_{key}"])
        return f"{first} ({' to '.join(ends)})" if ends else first

    return table(
        ("", "NMI", "Recall@1", "difference", *others),
        (
            (
                row["recipe"],
                percent(row, "NMI", "NMI_min", "NMI_max"),
                percent(row, "Recall@1", "Recall@1_low", "Recall@1_high"),
                difference_in_points(*told[row["recipe"]]) if row["recipe"] in told else "",
                *(percent(row, metric) for metric in others),
            )
            for row in rows
        ),
    )


def _differences_of_book(name: str, words: str) -> str:
    """Of a book's single models, the differences in MAP@R of all whose name has the words."""
    rows = _rows(name, "table.csv")
    ends = ("", "_low", "_high", "_p")
    return table(
        ("", "MAP@R", "difference to the plain loss"),
        (
            (
                row["recipe"],
                f"{100 * float(row['separate_MAP@R']):.1f}",
                difference_in_points(*(float(row[f"separate_difference{end}"]) for end in ends)),
            )
            for row in rows
            if words in row["recipe"] and row["separate_difference"]
        ),
    )


def _recall_differences(words: tuple[str, ...]) -> str:
    """Paired differences of Recall@1 in the book `adversary-cub`, of recipes that end with one of the words."""
    rows = _rows("adversary-cub", "recall.csv")
    return table(
        ("", "against", "Recall@1, points"),
        (
            (
                row["recipe"],
                row["to"],
                difference_in_points(*(float(row[end]) for end in ("difference", "low", "high", "p"))),
            )
            for row in rows
            if row["recipe"].endswith(words)
        ),
    )


def _rows(name: str, file: str) -> list[dict[str, str]]:
    """The rows of a table of a book."""
    with open(book_folder(name) / file, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


TABLES = {
    **{
        f"book_{name.replace('-', '_')}": partial(_book, name)
        for name in ("rates", "cub", "omniglot", "ablation", "gsp-cub")
    },
    "book_memory": partial(_differences_of_book, "cub", "-xbm"),
    "ccp_best": _best,
    **{f"recalls_{name.replace('-', '_')}": partial(_recalls, name) for name in ("adversary-cub", "adversary-cifar")},
    "recalls_attention": partial(_recall_differences, ("GDFL", "stage averages")),
    "recalls_opponents": partial(_recall_differences, ("Soft-Adv", "Adapt-Adv", "+ Adv", "Energy")),
}
