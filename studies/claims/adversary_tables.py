"""The numbers of Al-Kaabi, Monsefi and Zabihzadeh, in percent and points, as printed."""

from __future__ import annotations

from studies.claims.claim import Table

HEAD = ("loss", "", "NMI", "Recall@1", "Recall@2", "Recall@4", "Recall@8", "kNN-Acc")


def theirs(*lines: str) -> Table:
    """Lines of the paper's tables 3 to 6, "|" between cells."""
    return Table(HEAD, [line.split("|") for line in lines])


CUB_TABLE = theirs(
    "triplet|base|58.17|45.39|58.86|70.41|80.44|49.14",
    "triplet|Energy|55.87|39.94|52.65|66.12|78.53|42.35",
    "triplet|Soft-Adv|61.83|51.5|64.47|75.83|84.69|53.98",
    "triplet|Adapt-Adv|62.07|53.66|65.83|76.65|84.99|56.14",
    "angular|base|59.26|49.59|62.15|73.36|83.05|51.98",
    "angular|Energy|59.91|49.95|62.19|72.75|82.63|51.92",
    "angular|Soft-Adv|61.65|52.18|64.96|75.79|84.47|54.90",
    "angular|Adapt-Adv|61.78|52.68|65.11|75.86|84.5|55.60",
    "ProxyNCA|base|63.62|54.02|66.83|78.07|85.7|56.74",
    "ProxyNCA|Energy|63.62|53.83|66.49|77.67|86.38|56.48",
    "ProxyNCA|Soft-Adv|66.26|58.1|69.95|79.46|87.22|60.08",
    "ProxyNCA|Adapt-Adv|65.86|57.38|68.91|78.58|87.07|60.20",
)
CARS_TABLE = theirs(
    "triplet|base|52.50|44.13|57.51|70.1|79.79|46.28",
    "triplet|Energy|48.93|34.93|48.49|61.8|74.16|37.57",
    "triplet|Soft-Adv|57.61|61.74|73.36|82.52|89.51|63.82",
    "triplet|Adapt-Adv|57.71|62.51|74.23|83.22|89.45|65.18",
    "angular|base|55.49|59.76|71.16|79.79|86.87|61.33",
    "angular|Energy|55.52|60.34|71.37|80.09|87.27|62.29",
    "angular|Soft-Adv|59.23|67.43|77.4|84.68|90.35|68.95",
    "angular|Adapt-Adv|59.49|66.99|77.58|85.39|90.63|68.33",
    "ProxyNCA|base|61.20|65.67|76.67|84.68|90.65|67.78",
    "ProxyNCA|Energy|60.16|64.11|75.18|83.91|89.69|66.40",
    "ProxyNCA|Soft-Adv|63.90|70.84|79.68|87.04|92.09|72.52",
    "ProxyNCA|Adapt-Adv|63.53|69.94|79.66|86.37|91.42|71.76",
)
FLOWERS_TABLE = theirs(
    "triplet|base|70.16|81.55|88.89|93.59|96.58|82.22",
    "triplet|Energy|68.42|78.24|86.28|92.02|96.05|80.24",
    "triplet|Soft-Adv|76.13|89.61|94.10|97.04|98.56|90.63",
    "triplet|Adapt-Adv|76.59|89.32|94.26|96.48|97.84|90.39",
    "angular|base|72.39|84.89|90.89|94.63|97.12|86.17",
    "angular|Energy|71.39|85.21|90.81|94.31|96.8|85.93",
    "angular|Soft-Adv|75.65|89.91|94.31|96.56|98.05|91.00",
    "angular|Adapt-Adv|76.05|89.64|93.94|96.56|98.16|90.31",
    "ProxyNCA|base|73.79|86.3|91.24|95.33|97.38|88.38",
    "ProxyNCA|Energy|75.42|87.42|92.26|95.59|97.68|88.44",
    "ProxyNCA|Soft-Adv|79.77|91.05|94.98|97.25|98.42|92.15",
    "ProxyNCA|Adapt-Adv|80.46|91.67|95.27|97.62|98.69|92.42",
)
ABLATION = theirs(
    "triplet|base|70.16|81.55|88.89|93.59|96.58|82.22",
    "triplet|GDFL|73.66|86.41|91.86|95.09|97.6|88.12",
    "triplet|Adv|72.73|84.54|90.68|94.71|97.36|86.03",
    "triplet|Adapt-Adv|76.59|89.32|94.26|96.48|97.84|90.39",
)
GAINS = Table(
    ("Recall@1 against the same loss alone", "triplet", "angular", "ProxyNCA"),
    [
        ("Soft-Adv, CUB-200-2011", "+6.11", "+2.59", "+4.08"),
        ("Adapt-Adv, CUB-200-2011", "+8.27", "+3.09", "+3.36"),
    ],
)
ENERGY_GAINS = Table(
    GAINS.head,
    [
        ("Energy, CUB-200-2011", "-5.45", "+0.36", "-0.19"),
        ("Energy, Cars-196", "-9.20", "+0.58", "-1.56"),
        ("Energy, Oxford Flowers", "-3.31", "+0.32", "+1.12"),
    ],
)
BETWEEN = Table(
    ("Recall@1, Adapt-Adv against Soft-Adv", "triplet", "angular", "ProxyNCA"),
    [
        ("CUB-200-2011", "+2.16", "+0.50", "-0.72"),
        ("Cars-196", "+0.77", "-0.44", "-0.90"),
        ("Oxford Flowers", "-0.29", "-0.27", "+0.62"),
    ],
)
