"""Files of a book that were damaged, exchanged or are somebody else's: one sentence before anything is trained."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from nearkin.errors import RunError
from nearkin.protocol import worker

QUERIES = "queries/triplet-fold1-seed0.npz"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Pictures are looked at elsewhere."""
    monkeypatch.setattr("nearkin.protocol.tables.draw_benchmark", lambda *_, **__: b"")


@pytest.fixture
def untrainable(monkeypatch):
    """From here on nothing may be trained."""
    monkeypatch.setattr(worker, "train", lambda *_, **__: pytest.fail("a model was trained"))


@pytest.fixture
def book(sound, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(sound, tmp_path / "book")


def change_book(change):
    def damage(path):
        stored = json.loads((path / "book.json").read_text())
        change(stored)
        (path / "book.json").write_text(json.dumps(stored))

    return damage


def change_line(change, number=1):
    def damage(path):
        rows = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
        change(rows[number])
        (path / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return damage


def write(file, content):
    return lambda path: (path / file).write_bytes(content)


def make_folder(file):
    def damage(path):
        (path / file).unlink()
        (path / file).mkdir()

    return damage


def flip(file, at):
    def damage(path):
        held = bytearray((path / file).read_bytes())
        held[at] ^= 255
        (path / file).write_bytes(bytes(held))

    return damage


BOOK, LINE, FILE = r"book\.json", r"(?i)line 2\b", "npz"
DAMAGE = {
    "book empty": (write("book.json", b""), BOOK),
    "book binary": (write("book.json", b"\xff\xfe\x00"), BOOK),
    "book a folder": (make_folder("book.json"), BOOK),
    "book without folds": (change_book(lambda b: b.pop("folds")), BOOK),
    "book with more": (change_book(lambda b: b.update(more=1)), BOOK),
    "data empty": (change_book(lambda b: b.update(data={})), BOOK),
    "data null": (change_book(lambda b: b.update(data=None)), BOOK),
    "recipes a list": (change_book(lambda b: b.update(recipes=[])), BOOK),
    "folds a number": (change_book(lambda b: b.update(folds=2)), BOOK),
    "recipe without seeds": (change_book(lambda b: b["recipes"]["triplet"].pop("seeds")), BOOK),
    "recipe without content": (change_book(lambda b: b["recipes"]["triplet"].pop("content")), BOOK),
    "content a text": (change_book(lambda b: b["recipes"]["triplet"].update(content="x")), BOOK),
    "classes shortened": (change_book(lambda b: b["classes"].pop()), "classes"),
    "ledger a folder": (make_folder("ledger.jsonl"), r"ledger\.jsonl"),
    "no per_class": (change_line(lambda row: row.pop("per_class")), LINE),
    "per_class null": (change_line(lambda row: row.update(per_class=None)), LINE),
    "per_class shortened": (change_line(lambda row: row["per_class"]["MAP@R"].pop()), LINE),
    "per_class of texts": (change_line(lambda row: row["per_class"].update({"P@1": ["a", "b", "c"]})), LINE),
    "no MAP@R": (change_line(lambda row: row.pop("MAP@R")), LINE),
    "no seconds": (change_line(lambda row: row.pop("seconds")), LINE),
    "seconds null": (change_line(lambda row: row.update(seconds=None)), LINE),
    "validation a text": (change_line(lambda row: row.update({"validation_MAP@R": "x"})), LINE),
    "NMI a text": (change_line(lambda row: row.update(NMI="x")), LINE),
    "no Recall@4 beside NMI": (change_line(lambda row: row.pop("Recall@4")), LINE),
    "no NMI beside Recall@4": (change_line(lambda row: row.pop("NMI")), LINE),
    "recipe a list": (change_line(lambda row: row.update(recipe=["x"])), LINE),
    "no fold": (change_line(lambda row: row.pop("fold")), LINE),
    "unknown kind": (change_line(lambda row: row.update(kind="x")), LINE),
    "last line without values": (
        change_line(lambda row: row.pop("MAP@R"), number=3),
        r"(?i)line 4\b",
    ),
    "another hash": (
        change_line(lambda row: row.update(hash="0" * 16)),
        "triplet",
    ),
    "queries gone": (lambda path: (path / QUERIES).unlink(), FILE),
    "queries empty": (write(QUERIES, b""), FILE),
    "queries garbage": (write(QUERIES, b"abc"), FILE),
    "queries an array": (lambda path: np.save(open(path / QUERIES, "wb"), np.zeros(3)), FILE),  # noqa: SIM115
    "queries flipped": (flip(QUERIES, 100), FILE),
    "queries of others": (lambda path: np.savez(path / QUERIES, values=np.zeros((2, 3))), FILE),
    "queries without hits": (lambda path: np.savez(path / QUERIES, values=np.zeros((2, 24))), FILE),
    "hits of others": (
        lambda path: np.savez(path / QUERIES, values=np.zeros((2, 24)), hits=np.zeros((4, 3), bool)),
        FILE,
    ),
    "queries not finite": (lambda path: np.savez(path / QUERIES, values=np.full((2, 24), np.nan)), FILE),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_in_a_sentence_before_anything_is_trained(name, book, bench, candidate, untrainable):
    damage, word = DAMAGE[name]
    damage(book)
    before = {file: file.read_bytes() for file in book.iterdir() if file.is_file()}
    with pytest.raises(RunError, match=word) as refused:
        bench([candidate("triplet")], book, seeds=2)  # one model more would be trained
    assert "\n" not in str(refused.value)
    assert {file: file.read_bytes() for file in book.iterdir() if file.is_file()} == before


def test_numbers_of_another_recipe_are_not_taken_over(book, bench, candidate, untrainable):
    """An older book.json was restored, and a recipe of the name came that is not the one of the ledger."""
    change_line(lambda row: row.update(recipe="contrastive", kind="separate"))(book)
    shutil.copy(book / QUERIES, book / "queries" / "contrastive-fold1-seed0.npz")
    with pytest.raises(RunError, match="contrastive"):
        bench([candidate("contrastive")], book)
    assert "contrastive" not in json.loads((book / "book.json").read_text())["recipes"]


CLASSES = {
    "gone": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(b"xyz"),
    "permuted": lambda file: np.save(file, np.load(file)[::-1].copy()),
    "shortened": lambda file: np.save(file, np.load(file)[:-1].copy()),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_of_queries_follow_from_the_data_and_are_written_again(
    name, sound, book, bench, candidate, untrainable
):
    CLASSES[name](book / "queries" / "classes.npy")
    bench([candidate("triplet")], book)
    for file in ("queries/classes.npy", "table.csv"):
        assert (book / file).read_bytes() == (sound / file).read_bytes()


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY garbage", None])
def test_embeddings_that_cannot_be_read_are_made_again(content, sound, halfway, bench, candidate, tmp_path):
    path = shutil.copytree(halfway, tmp_path / "book")
    file = path / "embeddings" / "triplet-fold1-seed0.npy"
    if content is None:
        np.save(file, np.load(file)[:-1].copy())  # of fewer items
    else:
        file.write_bytes(content)
    bench([candidate("triplet")], path)
    made, expected = ((at / "ledger.jsonl").read_text().splitlines() for at in (path, sound))
    assert [json.loads(line)["MAP@R"] for line in made] == [json.loads(line)["MAP@R"] for line in expected]


def test_a_place_that_cannot_be_looked_into_is_refused(bench, candidate, tmp_path):
    with pytest.raises(RunError, match="xxx"):
        bench([candidate("triplet")], tmp_path / ("x" * 300))


def test_what_a_killed_process_left_half_written_is_removed(book, bench, candidate, untrainable):
    (book / "embeddings").mkdir()
    left = [book / ".ledger.jsonl.0123abcd.tmp", book / "queries" / ".x.npz.0123abcd.tmp"]
    left += [book / "embeddings" / ".x.npy.0123abcd.tmp"]
    for file in left:
        file.write_text("half")
    (book / ".mine.tmp").write_text("somebody's")
    half = book / "runs" / ".triplet-fold1-seed0.00000000.tmp"
    half.mkdir(parents=True)
    bench([candidate("triplet")], book)
    assert not any(file.exists() for file in [*left, half, book / "runs", book / "embeddings"])
    assert (book / ".mine.tmp").exists()
    assert ".*.tmp" in (book / ".gitignore").read_text().splitlines()


def test_a_gitignore_of_the_user_stays(bench, candidate, sound, tmp_path):
    path = tmp_path / "book"
    (path / ".git").mkdir(parents=True)
    (path / ".gitignore").write_text("mine\n")
    bench([candidate("triplet")], path)
    assert (path / ".gitignore").read_text() == "mine\n"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".profile").write_text("")
    with pytest.raises(RunError, match=r"\.profile"):
        bench([candidate("triplet")], tmp_path / "home")
    assert [file.name for file in (tmp_path / "home").iterdir()] == [".profile"]
