"""What cannot be run in a test, and why."""

from __future__ import annotations

UNREACHABLE = {"milvus://": "needs a Milvus server; the same commands run on Milvus Lite in tests/gallery"}
"""Commands with a word that begins so are parsed by the real command line, and not run."""

NOT_RUN: dict[tuple[str, str], str] = {
    (
        "docs/guide/fine-tuning.md",
        "Training takes about 1 h 40 min on this machine (2000 steps of 2.9 s); --set training.max_steps=... for less.",
    ): "what train printed for CUB-200-2011 on two cores, which no page has; tests/training tests the estimate",
    ("docs/guide/hierarchies.md", "(((shark,trout)fish,(dog)mammals)animals,(cup)things);"): (
        "a file in Newick's form; tests/data/test_hierarchy.py reads it"
    ),
    ("docs/guide/hierarchies.md", "nearkin hierarchy build clements.csv --data photos/ --out birds.nwk"): (
        "needs published checklists; tests/cli/test_hierarchy_build.py builds trees of small ones"
    ),
    ("docs/guide/large-galleries.md", "from nearkin import Gallery"): "needs a Milvus server",
    ("docs/guide/peers.md", "python -m venv peers"): (
        "installs packages from the network; test_commands.py parses its calls of the benchmark"
    ),
    ("docs/guide/recipes.md", "mkdir -p ~/.cache/nearkin/weights"): (
        "downloads 140 MB; tests/models reads such files of random weights"
    ),
    (
        "docs/guide/plankton.md",
        "f <- f + W^T [ln w, ln h] + b        w, h: the image as it was saved; f: what the head takes; W (2, F), b (F)",
    ): "maths",
    (
        "docs/guide/runs.md",
        "Trained 400 steps in 3 s on 490 classes (87 more for validation, 388 held out).",
    ): "what train printed for emoji.zip, which no page has",
    ("docs/guide/service.md", "server {"): "nginx; its address is compared with the service's below",
    ("docs/guide/service.md", "[Service]"): "systemd; its command is parsed below",
    ("docs/guide/tune.md", "nearkin tune cub200 --recipe contrastive-ccp --trials 20 --out searches/ccp \\"): (
        "trains twenty models; tests/protocol/test_protocol_tune.py runs the command"
    ),
    ("docs/guide/tune.md", "nearkin train cub200 --recipe searches/ccp/best.yaml --out runs/best"): (
        "needs the search above"
    ),
    ("docs/guide/short-embeddings.md", "Euclidean space:  P W u + P (b - m)"): "maths",
}
"""Page and first line of a block, and why it is not run."""
