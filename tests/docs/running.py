"""Running a page: all its blocks in order, in one scratch directory."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nearkin.recipe import load_recipe
from nearkin.recipe.recipe import Recipe

from .pages import RUN, Block
from .prompt import Prompt

_FILE = re.compile(r"^# ([\w-]+\.ya?ml)\b")
_ANSWERS = re.compile(r"\b(yes|no|True|False|known|unknown)\b")


class Page:
    """What the blocks of one page share: a shell, Python names, and what was printed last.

    Args:
        prompt: where shell blocks run.
        names: what Python blocks find defined; they add to it.
        replaced: parts of blocks that cannot be copied as they stand, such as a shortened key, and what to put there.
    """

    def __init__(self, prompt: Prompt, names: dict[str, Any], replaced: dict[str, str]) -> None:
        self.prompt = prompt
        self.names = names
        self.replaced = replaced
        self.printed = ""

    def prepare(self, script: str) -> None:
        """Do what the page takes for granted; a run that another page had trained so is taken from there."""
        code, out, errors = self.prompt.run(script, once=True) if script else (0, "", "")
        if code not in (0, 3):
            pytest.fail(
                f"what the page takes for granted failed:\n{script}\n{out[-1000:]}\n{errors[-3000:]}", pytrace=False
            )

    def run(self, block: Block) -> None:
        """Run or check one block by its language; fail with its place."""
        text = block.text
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        language = "sh" if block.language == "bash" else block.language
        try:
            getattr(self, f"_{language}")(text, block)
        except Exception as error:
            raise AssertionError(f"{block.place}: {error}") from error

    def _python(self, text: str, block: Block) -> None:
        out = io.StringIO()
        # Line numbers of the page itself.
        code = compile("\n" * block.line + text, block.page, "exec")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), self.prompt.connected():
            exec(code, self.names)
        self.printed = out.getvalue()

    def _sh(self, text: str, block: Block) -> None:
        code, self.printed, errors = self.prompt.run(text)
        if code not in (0, 3):
            pytest.fail(
                f"{block.place} ended with {code}:\n{text}\n{self.printed[-2000:]}\n{errors[-4000:]}", pytrace=False
            )

    def _yaml(self, text: str, block: Block) -> None:
        """Written to the file that its first line names; if it is a recipe, or a part of one, it must be valid."""
        tree = yaml.safe_load(text)
        name = _FILE.match(text)
        if name:
            Path(name[1]).write_text(text, encoding="utf-8")
        if isinstance(tree, dict) and tree.keys() <= {*Recipe.model_fields, "extends"}:
            part = Path(name[1] if name else "part.yaml")
            if "extends" not in tree:
                part.write_text(f"extends: base\n{text}", encoding="utf-8")
            load_recipe(part)

    def _json(self, text: str, block: Block) -> None:
        json.loads(text)

    def _csv(self, text: str, block: Block) -> None:
        rows = list(csv.reader(io.StringIO(text)))
        if len({len(row) for row in rows}) != 1 or len(set(rows[0])) != len(rows[0]):
            raise ValueError("the rows of the table differ in length, or two columns have one name")

    def _text(self, text: str, block: Block) -> None:
        """What the block before it printed, but for what depends on the data."""
        real = set(map(frame, self.printed.splitlines()))
        missing = [line for line in text.splitlines() if frame(line) not in real]
        if missing:
            raise ValueError(f"no such line is printed as {missing[0]!r}, but\n{self.printed}")


def frame(line: str) -> str:
    """A line of output without what depends on the data: numbers, names, yes or no, and the cells of a table."""
    if re.match(r"\s.*\d", line):
        return "row"
    names = re.sub(r"\b[A-Z][\w/-]*", "@", _ANSWERS.sub("?", line))
    return " ".join(re.sub(r"\d[\d.,]*", "#", names).split())


def is_output(block: Block, before: Block | None) -> bool:
    """Whether a block of text is what the block before it prints."""
    return block.language == "text" and block.follows and before is not None and before.language in RUN


@contextlib.contextmanager
def inside(folder: Path) -> Any:
    """Work in a folder, and leave the environment as it was."""
    place, environment = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
