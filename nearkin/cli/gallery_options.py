"""Arguments and options that the commands of the gallery share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

GalleryPath = Annotated[
    str,
    typer.Argument(
        metavar="GALLERY", help="A gallery's directory, a Milvus Lite file (.db), or milvus://host:port/collection."
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="The gallery's model, where its store does not keep it: a run or model file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Where = Annotated[
    str | None,
    typer.Option("--where", help="Only items that fulfil this, e.g. \"price < 20 and colour in ('red', :other)\"."),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="Value of :NAME in --where; may be repeated."),
]
Items = Annotated[
    str | None,
    typer.Argument(
        metavar="ITEMS",
        help="Data in any form `nearkin train` takes, or a folder of loose files; for vectors a .parquet file, "
        "or the folder of  nearkin embed --shards.",
    ),
]
Vectors = Annotated[
    Path | None, typer.Option("--vectors", help="Vectors of your own, a .npy file (n, d).", dir_okay=False)
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        help="What the --vectors are: a text file, a label a line, or a .csv with label and, if you like, id and more.",
        dir_okay=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="COLUMN=VALUE", help="Only rows of ITEMS with this value; may be repeated."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")]
IndexParameters = Annotated[
    list[str] | None,
    typer.Option("--index-param", metavar="NAME=VALUE", help="Of an index in Milvus, e.g. M=16; may be repeated."),
]
