import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.metrics.trials import cohort_moments, draw_groups, normalise_scores, read_trials

VOXCELEB = """1 id10270/x6uYqmx31kE/00001.wav id10270/8jEAjG6SegY/00008.wav
0 id10270/x6uYqmx31kE/00001.wav id10300/ize_eiCFEg0/00003.wav
"""


def written(tmp_path, text):
    path = tmp_path / "trials.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_published_list_is_read(tmp_path):
    found = read_trials(written(tmp_path, VOXCELEB))
    assert len(found) == 2
    assert found.same.tolist() == [True, False]
    assert found.sides[0] == ("id10270/x6uYqmx31kE/00001.wav",)
    assert (found.enrolled.tolist(), found.queries.tolist()) == ([0, 0], [1, 2])
    assert len(found.recordings) == 3


def test_other_words_and_several_recordings_are_read(tmp_path):
    text = "# comment\n\na.wav b.wav target\na.wav,c.wav b.wav nontarget\n1 b.wav b.wav\n"
    found = read_trials(written(tmp_path, text))
    assert found.same.tolist() == [True, False, True]
    assert found.sides == (("a.wav",), ("b.wav",), ("a.wav", "c.wav"))
    assert found.recordings == ["a.wav", "b.wav", "c.wav"]


def test_a_byte_order_mark_is_no_part_of_a_list(tmp_path):
    (tmp_path / "notepad.txt").write_text(VOXCELEB, encoding="utf-8-sig")
    assert read_trials(tmp_path / "notepad.txt").same.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "word"), [("1 a.wav\n", "Line 1"), ("1 a b\n2 a b\n", "Line 2"), ("1 , b\n", "side"), ("#\n", "holds no")]
)
def test_what_is_no_list_is_refused(tmp_path, text, word):
    with pytest.raises(DataError, match=word):
        read_trials(written(tmp_path, text))
    with pytest.raises(DataError, match="read"):
        read_trials(tmp_path / "missing.txt")


def test_groups_share_nothing_and_are_of_one_class():
    codes = np.repeat([0, 1, 2], [7, 3, 2])
    groups = draw_groups(codes, 3, seed=1)
    assert groups.shape == (3, 3)
    assert len(np.unique(groups)) == 9
    assert all(len(np.unique(codes[group])) == 1 for group in groups)
    assert not np.array_equal(groups, draw_groups(codes, 3, seed=2))
    with pytest.raises(DataError, match="enrol"):
        draw_groups(codes, 8)


@pytest.mark.parametrize("top", [None, 2, 4, 99])
def test_normalised_scores_match_plain_loops(top):
    rng = np.random.default_rng(0)
    scores, e, q = rng.normal(size=5), rng.normal(size=(3, 6)), rng.normal(size=(4, 6))
    enrolled, queries = np.array([0, 1, 2, 0, 1]), np.array([3, 2, 1, 0, 0])
    wanted = []
    for score, one, other in zip(scores, enrolled, queries, strict=True):
        parts = []
        for cohort in (e[one], q[other]):
            kept = sorted(cohort, reverse=True)[:top]
            parts.append((score - np.mean(kept)) / np.std(kept))
        wanted.append(sum(parts) / 2)
    moments = [tuple(v[at] for v in cohort_moments(t, top)) for t, at in ((e, enrolled), (q, queries))]
    np.testing.assert_allclose(normalise_scores(scores, *moments), wanted)


def test_a_cohort_needs_strangers():
    with pytest.raises(DataError, match="cohort"):
        cohort_moments(np.ones((3, 1)))
    with pytest.raises(DataError, match="strangers"):
        cohort_moments(np.ones((3, 4)), top=1)
