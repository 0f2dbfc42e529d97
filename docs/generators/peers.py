"""Tables of nearkin beside other toolkits."""

from __future__ import annotations

from generators.kept import measured
from generators.markdown import table


def _features() -> str:
    """Who has what: yes, no, in part, or how many; judgements link to the page they rest on."""
    result = measured("peers")
    names = list(result["features"][0]["cells"])

    def told(cell: dict[str, str] | None) -> str:
        if cell is None:
            return "–"
        return f"[{cell['says']}°]({cell['link']})" if cell["how"] == "judged" else cell["says"]

    rows, theme = [], None
    for row in result["features"]:
        if row["theme"] != theme:
            theme = row["theme"]
            rows.append((f"**{theme}**", *[""] * len(names)))
        rows.append((row["what"], *(told(row["cells"][name]) for name in names)))
    versions = ", ".join(f"{name} {version}" for name, version in result["peers"].items())
    return f"Asked on {result['date']}; versions: {versions}.\n\n{table(('', *names), rows)}"


def _evidence() -> str:
    """What each answer rests on."""
    result = measured("peers")
    names = list(result["features"][0]["cells"])

    def told(cell: dict[str, str] | None) -> str:
        if cell is None:
            return "–"
        return cell["evidence"] + (" (read in its source)" if cell["how"] == "read" else "")

    rows = [(row["what"], *(told(row["cells"][name]) for name in names)) for row in result["features"]]
    return table(("", *names), rows)


def _speed() -> str:
    """The time of others as multiples of ours, in the last full run."""
    result = measured("peers")
    if "speed" not in result:
        return "Not measured yet: `python benchmarks/peers.py`."
    notes = {line["what"]: line["note"] for line in result["speed"] if line["note"]}
    rows = [
        (
            line["what"],
            line["contender"],
            f"{line['ratio']:.3g} ({line['low']:.3g} to {line['high']:.3g})",
            notes.get(line["what"], ""),
        )
        for line in result["speed"]
        if line["contender"] != "nearkin"
    ]
    machine = result["machine"]
    caption = f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}:"
    extra = "; ".join(f"{line['contender']} {line['extra MB']:.0f} MB" for line in result["memory"])
    memory = f"Peak memory beside the inputs, of the metrics of 20,000 items in 20 classes: {extra}."
    left_out = table(("not measured", "why"), result["left out"])
    speeds = table(("what", "beside", "its time / ours (range)", ""), rows)
    return f"{caption}\n\n{speeds}\n\n{memory}\n\n{left_out}"


TABLES = {"peers_features": _features, "peers_evidence": _evidence, "peers_speed": _speed}
