"""Section 2.4 of Kim's thesis, which reports others: does separating the trained classes cost new ones?"""

from __future__ import annotations

from collections.abc import Callable

from scipy.stats import rankdata

from studies.claims.claim import Claim, Evidence, Table
from studies.claims.distance_readings import by_seed, ledger, pearson, told

COMMAND, PAGE = "python studies/separation/run.py", "methods/geometry.md"
SETTING = (
    "Birds: a linear head of 128 dimensions on a frozen EfficientNet-Lite0 learns 100 species of CUB-200-2011 in 600 "
    "steps, where the papers train whole networks. Measured on 20 photographs each of these species, which did not "
    "train, and of 100 new ones. Three seeds."
)
LEAST, MOST = "margin 0", "margin 0.5"
MODELS = (
    "Points are 18 models, means of three seeds: CosFace with five margins, NormFace with five scales, and eight "
    "losses."
)
LITTLE = 0.1
"""A share of D_inter within which it changes little; the thesis gives no bound."""


def values(cell: str, part: str, measure: str) -> dict[int, float]:
    """Seed to a measure of seen or unseen classes."""
    return {line["seed"]: line[part][measure] for line in ledger("separation") if line["cell"] == cell}


def margin(part: str, measure: str, *, relative: bool = False, **expected: float) -> Evidence:
    """The largest margin minus none; relative: as a share of what it is without."""
    more, less = values(MOST, part, measure), values(LEAST, part, measure)
    scale, digits, unit = (100.0, 1, ", points") if "shot" in measure else (1.0, 3, "")
    if relative:
        more, less = {seed: more[seed] / less[seed] for seed in more}, dict.fromkeys(less, 1.0)
        unit = ", as a share"
    names = [cell for cell in dict.fromkeys(line["cell"] for line in ledger("separation")) if "margin" in cell]
    rows = [[cell, told(list(values(cell, part, measure).values()), digits, scale)] for cell in names]
    compared = by_seed(f"{MOST} against {LEAST}, {measure} of {part} classes{unit}", more, less, scale=scale,
                       digits=digits, **expected)  # fmt: skip
    return Evidence([compared], Table(["CosFace", f"{measure}, {part} classes"], rows))


def over_models(measure: str, part: str, target: str, *, ranks: bool = False, **expected: float) -> Evidence:
    """The correlation of a measure of the trained classes with how well classes are told apart."""
    lines = [line for line in ledger("separation") if line["cell"] != "classifier" and "margin -" not in line["cell"]]
    names = list(dict.fromkeys(line["cell"] for line in lines))
    columns = []
    for where, what in (("seen", measure), (part, target)):
        of = [list(values(name, where, what).values()) for name in names]
        columns.append([sum(each) / len(each) for each in of])
    rows = [[name, f"{first:.3f}", f"{100 * second:.1f}"] for name, first, second in zip(names, *columns, strict=True)]
    if ranks:
        columns = [rankdata(column).tolist() for column in columns]
    kind = "rank correlation" if ranks else "correlation"
    compared = pearson(
        f"{kind} of {measure} of seen classes with {target} of {part} ones", *columns, digits=2, **expected
    )
    return Evidence([compared], Table(["model", f"{measure}, seen", f"{target}, {part} (%)"], rows))


def reported(
    key: str, text: str, after: str, theirs: Table | None, evidence: Callable[[], Evidence], remark: str = ""
) -> Claim:
    return Claim(key, text, f"section 2.4, after {after}", theirs, SETTING, evidence, command=COMMAND, page=PAGE,
                 remark=f"The thesis cites it. {remark}".strip())  # fmt: skip


LIU, ROTH, KORNBLITH = "Liu et al. 2020", "Roth et al. 2020", "Kornblith et al. 2021"
CLAIMS = (
    reported(
        "margin-base-phi",
        "A larger margin of CosFace raises the discriminative value phi of trained classes.",
        LIU,
        None,
        lambda: margin("seen", "phi", above=0.0),
    ),
    reported(
        "margin-novel-phi", "It lowers phi of new classes.", LIU, None, lambda: margin("unseen", "phi", below=0.0)
    ),
    reported(
        "margin-novel-intra",
        "It raises the variance within new classes.",
        LIU,
        None,
        lambda: margin("unseen", "D_intra", above=0.0),
    ),
    reported(
        "margin-novel-inter",
        "It hardly changes the variance between new classes.",
        LIU,
        None,
        lambda: margin("unseen", "D_inter", relative=True, above=-LITTLE, below=LITTLE),
        f"Hardly is taken to be by less than {LITTLE:.0%}.",
    ),
    reported(
        "margin-base-shots",
        "It raises the accuracy of few shots on trained classes.",
        LIU,
        None,
        lambda: margin("seen", "5-way 1-shot", above=0.0),
    ),
    reported(
        "margin-novel-shots",
        "It lowers the accuracy of few shots on new classes.",
        LIU,
        None,
        lambda: margin("unseen", "5-way 1-shot", below=0.0),
    ),
    Claim(
        "negative-margin",
        "A negative margin is best for few shots of new classes.",
        f"section 2.4, after {LIU}",
        None,
        why_not="Not run yet: the package's CosFace takes margins below 0 now, and the study has nine models with "
        "them: some ten minutes of one core, most of them for the features of the photographs.",
        page="methods/cosface.md",
    ),
    reported(
        "density-generalises",
        "On CUB, pi_ratio of the trained classes goes together with how well new classes are found.",
        ROTH,
        Table(["", "correlation"], [["CUB200-2011", "0.79"]]),
        lambda: over_models("pi_ratio", "unseen", "MAP@R", above=0.0),
        f"{MODELS} The paper measures it on what trained, we on other photographs of these classes.",
    ),
    reported(
        "decay-generalises",
        "On CUB, rho of the trained classes goes against how well new classes are found.",
        ROTH,
        Table(["", "correlation"], [["CUB200-2011", "-0.80"]]),
        lambda: over_models("rho", "unseen", "MAP@R", below=0.0),
        MODELS,
    ),
    Claim(
        "generalises-elsewhere",
        "The same on CARS196 and Stanford Online Products.",
        f"section 2.4, after {ROTH}",
        Table(["correlation with", "CARS196", "SOP"], [["pi_ratio", "0.65", "0.22"], ["rho", "-0.85", "-0.63"]]),
        why_not="Neither data set is among the data here.",
    ),
    reported(
        "separation-accuracy",
        "The class separation R2 goes together with accuracy on the trained classes.",
        KORNBLITH,
        None,
        lambda: over_models("R2", "seen", "MAP@R", ranks=True, above=0.0),
        MODELS,
    ),
    reported(
        "separation-transfer",
        "The class separation R2 goes against how well the features do on other classes.",
        KORNBLITH,
        Table(["", "rank correlation"], [["eight losses, ImageNet", "-0.93"]]),
        lambda: over_models("R2", "unseen", "MAP@R", ranks=True, below=0.0),
        f"{MODELS} The interval of ranks is approximate. The paper transfers to other data sets, we to other species.",
    ),
    Claim(
        "reweighting",
        "Turning strong principal directions down after training may change phi and the number of directions, and "
        "improve new classes.",
        "section 6.2.3",
        None,
        why_not="Proposed as future work, without figures; the preface reports an early attempt without noticeable "
        "benefit. The package has it, and every audit of geometry tries it.",
        page="methods/principal-reweighting.md",
    ),
)
