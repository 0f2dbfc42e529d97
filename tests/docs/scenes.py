"""What each page takes for granted: what a reader who copies its blocks has done before."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

SHOP = "nearkin train photos/ --out runs/shop"
EPISODES = "for run in protonet-s protonet-dr; do nearkin train photos/ --recipe $run --out runs/$run; done"
SMALL = (
    "--set model.backbone=conv4 --set model.pretrained=false --set model.freeze=null --set model.cache=false"
    " --set training.backbone_lr_factor=1"
)
NEWICK = "((robin,wren,finch,jay)a,(heron,owl,tern,gull,kite,rook)b,(crane,stork,lark,swift,coot,teal,smew,ruff)c);"


@dataclass(frozen=True)
class Scene:
    """The state of things when a page begins, and what happens between its blocks.

    Args:
        data: names of the catalogue that are at hand.
        vectors: whether vectors of some other network are at hand.
        before: commands that were given before.
        names: Python that was run before, such as what gives a model that the page calls `model`.
        between: commands that are given before the block that begins so: what the prose tells to do, or what
            makes room where the page shows two ways to one end.
        replaced: parts of blocks that nobody can copy, and what stands in their place.
        environment: variables that others set, such as a scheduler.
        after: what must be true of the page's Python names when it is over.
    """

    data: tuple[str, ...] = ()
    vectors: bool = False
    before: str = ""
    names: str = ""
    between: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()


SCENES: dict[str, Scene] = {
    "README.md": Scene(
        before=f"""
        {EPISODES}
        for run in runs/*; do nearkin audit $run --suite retrieval; done
        for run in a b c; do
            nearkin train photos/ --out runs/$run --set training.seed=$((16#$run))
            nearkin audit runs/$run --suite retrieval,geometry
        done
        echo "{{land: [robin, wren, finch, jay, owl, kite, rook, lark, swift, coot, teal, smew, ruff], " \
            "water: [heron, tern, gull, crane, stork]}}" > catalogue.yaml
        cp -r photos photos-2023; cp -r photos photos-2024
        """,
        between={"nearkin train photos/ --out runs/shop": "rm -r shop.gallery"},
        environment={"SLURM_ARRAY_TASK_ID": "3"},
        after=(
            "vectors.shape == (2, model.dimension)",
            "'MAP@R' in set(result)",
            "result.subject.baseline_name == 'pretrained features'",
            "open('audit.html').seek(0, 2) > 10_000",
        ),
    ),
    "docs/guide/bulk-embedding.md": Scene(
        before=SHOP,
        replaced={"/shared/": "shared/", "--dimension 1280": "--dimension 320"},
        environment={"SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_PER_TASK": "1"},
    ),
    "docs/guide/comparing.md": Scene(
        before="""
        nearkin train photos/ --out runs/anchor
        nearkin train photos/ --recipe triplet --out runs/triplet
        nearkin train photos/ --recipe margin --out runs/plain
        for run in runs/*; do nearkin audit $run; done
        """,
    ),
    "docs/guide/confidence.md": Scene(before="nearkin train photos/ --out runs/birds"),
    "docs/guide/data.md": Scene(
        before="""
        cp -r photos plankton
        echo path,label > catalogue.csv
        for file in photos/*/*.jpg; do echo "$file,$(basename "$(dirname "$file")")"; done >> catalogue.csv
        """,
    ),
    "docs/guide/domains.md": Scene(data=("pacs",), before="nearkin train photos/ --out runs/mine"),
    "docs/guide/drift.md": Scene(
        data=("pacs",),
        before="""
        nearkin train photos/ --out runs/mine
        mv photos 2023; mkdir photos; cp -r 2023 photos/2024; mv 2023 photos
        """,
    ),
    "docs/guide/dynamics.md": Scene(before=EPISODES, replaced={"--from-step 5000 --to-step 20000": "--to-step 3"}),
    "docs/guide/explain.md": Scene(
        before="nearkin train photos/ --out runs/birds; find photos -name '[2-9].jpg' -delete",
    ),
    "docs/guide/export.md": Scene(before=f"{SHOP} {SMALL}"),
    "docs/guide/fair-comparisons.md": Scene(data=("few birds",)),
    "docs/guide/few-shot.md": Scene(
        data=("omniglot",),
        before="for run in birds birds-5; do nearkin train birds/ --out runs/$run; done",
        between={"nearkin train birds/ --recipe protonet-dr --out runs/birds": "rm -r runs"},
    ),
    "docs/guide/folder-to-embedding.md": Scene(between={"import nearkin as nk": "rm -r runs"}),
    "docs/guide/gallery.md": Scene(before=SHOP, vectors=True),
    "docs/guide/geometry.md": Scene(
        before="for run in triplet margin; do nearkin train photos/ --recipe $run --out runs/$run; done",
        between={
            "nearkin geometry runs/triplet runs/switched runs/margin": "for run in runs/*; do nearkin audit $run "
            "--suite retrieval,geometry; done"
        },
    ),
    "docs/guide/hierarchies.md": Scene(
        before=f"nearkin train photos/ --out runs/birds; echo '{NEWICK}' > birds.nwk",
    ),
    "docs/guide/large-galleries.md": Scene(vectors=True),
    "docs/guide/metrics.md": Scene(before="nearkin train photos/ --out runs/birds"),
    "docs/guide/one-model.md": Scene(
        before="for file in photos/*/*.jpg; do cp $file ${file%.jpg}-again.jpg; done",  # items are divided, not classes
        after=(
            "few.classes == tuple(sorted(photos.classes))",
            "few.dense is None",
            "0 <= float(score[0]) <= 1",
            "indices.shape == (len(photos), 3)",
            "all(own not in near for own, near in enumerate(indices))",
            "places.shape == (1, 3)",
        ),
    ),
    "docs/guide/plankton.md": Scene(data=("zooscan",)),
    "docs/guide/product-search.md": Scene(
        data=("fashion-mnist",),
        vectors=True,
        after=("near.item.metadata['price'] < 20", "right.mean() > 0.5"),
    ),
    "docs/guide/robustness.md": Scene(before=f"{SHOP} {SMALL}"),
    "docs/guide/runs.md": Scene(
        before=f"{SHOP}; nearkin train photos/ --recipe triplet --out runs/other; nearkin audit runs/other",
        names="import numpy; labels = numpy.arange(60) // 6; embeddings = numpy.random.rand(60, 8)",
    ),
    "docs/guide/service.md": Scene(
        vectors=True,
        before=f"""
        {SHOP}
        nearkin gallery create shop.gallery catalogue/ --model runs/shop
        nearkin gallery create own.gallery --dimension 3 --name own --vectors three.npy --labels labels.txt
        """,
        between={
            "curl -H 'content-type": "nearkin serve own.gallery",
            "import httpx": "nearkin serve shop.gallery",
        },
        replaced={"3c2da44c…": hashlib.sha256(b"open sesame").hexdigest(), "9f01ab77…": "0" * 64},
        environment={"KEY": "open sesame"},
    ),
    "docs/guide/several-processes.md": Scene(
        between={"torchrun --nnodes 2": "rm -r runs"},
    ),
    "docs/guide/short-embeddings.md": Scene(
        before="""
        nearkin train photos/ --out runs/birds
        nearkin train photos/ --recipe proxy-anchor-prefixes --out runs/short
        """,
    ),
    "docs/guide/speakers.md": Scene(
        data=("audiomnist",),
        after=("0 <= found.values['EER'] <= 1", "open('b.flac', 'rb').read(4) == b'fLaC'"),
    ),
    "docs/guide/species-unknown.md": Scene(
        data=("cub200",),
        after=("len(gallery.stats().classes) == 60", "len(gallery) == 60 * 15", "open('stranger.jpg', 'rb').read(2)"),
    ),
    "docs/guide/verification.md": Scene(before="nearkin train photos/ --out runs/whales"),
    "docs/guide/verify-speakers.md": Scene(
        data=("audiomnist",),
        between={
            'nearkin gallery enrol voices.gallery "Ada" ada1.flac ada2.flac ada3.flac': "for one in ada1 ada2 ada3 "
            "unknown; do cp a.flac $one.flac; done"
        },
        after=("answer.threshold is not None",),
    ),
}
