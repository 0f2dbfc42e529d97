"""Bring CUB-200-2011 to a short side of 256 pixels once, in its published layout: smaller and quicker to decode.

    git --git-dir=DIR archive HEAD | tar x -C FULL          of the mirror github:cyizhuo/CUB-200-2011-dataset
    python studies/fine_tune/prepare.py FULL CUB256         then  run.py --data CUB256

FULL has the images of each class in train/<class>/ and test/<class>/, which are the publisher's split of the images.
A preparation that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from PIL import Image

SHORT_SIDE = 256
QUALITY = 92
PARTS = {"train": "1", "test": "0"}
IMAGES, CLASSES = 11_788, 200


def shrink(source: Path, target: Path) -> None:
    """Write the image with a short side of 256 pixels; one that is smaller keeps its size."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(source) as opened:
        image = opened.convert("RGB")
    scale = SHORT_SIDE / min(image.size)
    if scale < 1:
        size = (round(image.width * scale), round(image.height * scale))
        image = image.resize(size, Image.Resampling.LANCZOS)
    temporary = target.with_suffix(".part")
    image.save(temporary, "JPEG", quality=QUALITY, subsampling=0)
    os.replace(temporary, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("full", type=Path, help="the folder with train/<class>/ and test/<class>/")
    parser.add_argument("out", type=Path, help="where CUB_200_2011/ is made")
    arguments = parser.parse_args()
    found = {part: sorted(arguments.full.glob(f"{part}/*/*.jpg")) for part in PARTS}
    images = sorted((f"{path.parent.name}/{path.name}", part, path) for part in PARTS for path in found[part])
    classes = sorted({name.partition("/")[0] for name, _, _ in images})
    if (len(images), len(classes)) != (IMAGES, CLASSES):
        print(
            f"{arguments.full} has {len(images):,} images of {len(classes)} classes in train/ and test/, and "
            f"CUB-200-2011 has {IMAGES:,} of {CLASSES}: extract the whole archive there.",
            file=sys.stderr,
        )
        return 1
    folder = arguments.out / "CUB_200_2011"
    for name, _, path in images:
        shrink(path, folder / "images" / name)
    number = {name: place for place, name in enumerate(classes, start=1)}
    lists = {
        "classes.txt": [f"{place} {name}" for name, place in number.items()],
        "images.txt": [f"{place} {name}" for place, (name, _, _) in enumerate(images, start=1)],
        "image_class_labels.txt": [
            f"{place} {number[name.partition('/')[0]]}" for place, (name, _, _) in enumerate(images, start=1)
        ],
        "train_test_split.txt": [f"{place} {PARTS[part]}" for place, (_, part, _) in enumerate(images, start=1)],
    }
    for name, lines in lists.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(images):,} images of {len(classes)} classes in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
