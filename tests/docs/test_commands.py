"""Every command that README and docs name exists, with its options, also where nothing is run."""

from __future__ import annotations

import re
import shlex

import pytest

from .pages import DOCS, ROOT, RUN, read_blocks
from .prompt import command_of, parse
from .scripts import check_calls

_INLINE = re.compile(r"(?<!`)`(nearkin [^`]+)`(?!`)")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_SCRIPT = re.compile(r"\bpython ((?:benchmarks|studies)/[\w/]+\.py)\b([^`\n#;|&]*)")


def all_pages():
    return ["README.md", "CONTRIBUTING.md", *sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))]


def commands_of(page):
    """Lines of code blocks, and inline code that begins with `nearkin`; whether each is to be copied, or only named."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in read_blocks(text, page):
        if block.language in RUN[1:]:
            for line in block.text.replace("\\\n", " ").splitlines():
                found = re.search(r"(?:^|\s)(nearkin [a-z].*)$", line)
                if found and not line.startswith("#"):
                    yield found[1], True
    for found in _INLINE.findall(_FENCED.sub("", text)):
        yield " ".join(found.split()), False


def words_of(line):
    """The words of a command up to what only a shell understands, without the dots of a shortened one."""
    words = shlex.split(re.sub(r"\s(?:>|\||&&|;).*$", "", line), comments=True)
    return [word for word in words if word not in ("…", "...", "[OPTIONS]")]


@pytest.mark.parametrize("page", [page for page in all_pages() if any(commands_of(page))])
def test_commands_of_nearkin_exist(page):
    wrong = {}
    for line, whole in commands_of(page):
        try:
            check(words_of(line)[1:], whole)
        except Exception as error:
            wrong[line] = str(error)
    assert not wrong


def check(words, whole):
    """A command that is copied must be whole; one that is only named, with some options or none, must have those."""
    target, rest = command_of(words)
    known = {name for parameter in target.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    if unknown:
        raise ValueError(f"no option {unknown[0]}")
    if hasattr(target, "commands"):
        if rest and not rest[0].startswith("-"):
            raise ValueError(f"no command {rest[0]}")
        return
    try:
        parse(words)
    except Exception as error:
        if whole or type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):  # an option without its value
            raise


def runs_of_benchmarks():
    """Every way in which README and docs call a benchmark or a study in code: script and words."""
    found = set()
    for page in all_pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        code = [block.text for block in read_blocks(text, page) if block.language in RUN[1:]]
        code += [" ".join(span.split()) for span in _CODE.findall(_FENCED.sub("", text))]
        for script, rest in _SCRIPT.findall("\n".join(code)):
            words = (word for word in rest.split() if word not in ("…", "...") and not word.startswith("$"))
            found.add((script, tuple(words)))
        # `python studies/x/run.py a`, `… b`
        for script, more in re.findall(
            r"`python ((?:benchmarks|studies)/[\w/]+\.py)[^`]*`((?:(?:,| and| or)? `… [^`]+`)+)", text
        ):
            found |= {(script, tuple(words.split())) for words in re.findall(r"`… ([^`]+)`", more)}
    return sorted(found)


def test_benchmarks_that_are_named_exist():
    named = {
        (page, script)
        for page in all_pages()
        for script in re.findall(r"\b(?:benchmarks|studies)/[\w/]+\.py\b", (ROOT / page).read_text(encoding="utf-8"))
    }
    assert named
    assert not {(page, script) for page, script in named if not (ROOT / script).is_file()}


@pytest.mark.parametrize("script", sorted({script for script, _ in runs_of_benchmarks()}))
def test_benchmarks_take_what_the_docs_give_them(script):
    check_calls(script, [words for name, words in runs_of_benchmarks() if name == script])


def test_a_wrong_call_is_found():
    for script, words in (
        ("benchmarks/none.py", ()),
        ("benchmarks/overhead.py", ("--chekc",)),
        ("studies/cub_frozen/run.py", ("sideways",)),
    ):
        with pytest.raises(ValueError, match=script):
            check_calls(script, [words])


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("nearkin trian photos/", "trian"),
        ("nearkin train photos/ --outt runs/a", "--outt"),
        ("nearkin data lst", "lst"),
    ],
)
def test_a_wrong_command_is_found(line, wrong):
    with pytest.raises(Exception, match=wrong):
        check(words_of(line)[1:], whole=False)
