"""rho-regularisation: which negatives are switched and for what, how draws go on, and who is refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nearkin.errors import RecipeError
from nearkin.objectives import ObjectiveSection, losses, make_objective, miners
from nearkin.objectives.miner import SwitchedNegatives, switching
from nearkin.protocol.candidates import Candidate
from nearkin.recipe import Recipe, load_recipe

CLASSES, DIMENSION = 5, 6
TAKERS = [name for name in losses if losses.get(name).miner and losses.get(name).switchable]


def batch(per_class=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(CLASSES * per_class, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(per_class)[order]
    return torch.randn(len(labels), DIMENSION, generator=generator), labels


def objective_of(switch, loss="triplet", seed=0, **more):
    section = ObjectiveSection(loss=loss, switch=switch, **more)
    return make_objective(section, dimension=DIMENSION, classes=CLASSES, seed=seed)


class Fixed(nn.Module):
    """A miner that always chooses the same."""

    def __init__(self, choice):
        super().__init__()
        self.choice = choice

    def forward(self, *_):
        return self.choice


def all_triplets(labels, ref_labels=None):
    others = labels if ref_labels is None else ref_labels
    found = [
        (a, p, n)
        for a, p, n in product(range(len(labels)), range(len(others)), range(len(others)))
        if labels[a] == others[p] and labels[a] != others[n] and (ref_labels is not None or a != p)
    ]
    return tuple(torch.tensor(found, dtype=torch.int64).reshape(-1, 3).T)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_share_of_the_negatives_of_triplets_is_switched_and_nothing_else(share):
    embeddings, labels = batch(6)
    choice = all_triplets(labels)
    a, p, n = switching(Fixed(choice), share, seed=0)(embeddings, labels)
    assert torch.equal(a, choice[0])
    assert torch.equal(p, choice[1])
    switched = n != choice[2]
    assert switched.float().mean().item() == pytest.approx(share, abs=0.04)
    assert (labels[n[switched]] == labels[a[switched]]).all()
    assert (n[switched] != a[switched]).all()
    assert (n[switched] != p[switched]).all()


def test_any_other_item_of_the_class_is_as_likely():
    embeddings, labels = batch(5)
    choice = (torch.zeros(4000, dtype=torch.int64), torch.full((4000,), int(torch.where(labels == labels[0])[0][2])))
    negatives = torch.full((4000,), int(torch.where(labels != labels[0])[0][0]))
    *_, n = switching(Fixed((*choice, negatives)), 0.999, seed=0)(embeddings, labels)
    counts = torch.bincount(n[n != negatives], minlength=len(labels))
    allowed = (labels == labels[0]) & (torch.arange(len(labels)) != 0)
    allowed[choice[1][0]] = False
    assert (counts[~allowed] == 0).all()
    np.testing.assert_allclose(counts[allowed] / counts.sum(), 1 / 3, atol=0.03)


@given(st.integers(1, 4), st.integers(0, 99), st.booleans(), st.booleans())
def test_switched_items_are_of_the_anchors_class_whatever_the_batch(per_class, seed, pairs, against):
    embeddings, labels = batch(per_class, seed)
    references = torch.randint(0, CLASSES + 1, (11,), generator=torch.Generator().manual_seed(seed))
    given = (embeddings[:11], references) if against else (None, None)
    known = references if against else labels
    choice = all_triplets(labels, references if against else None)
    if pairs:
        choice = (choice[0], choice[1], choice[0], choice[2])
    found = SwitchedNegatives(Fixed(choice), 0.7)(embeddings, labels, *given)
    assert all(torch.equal(now, before) for now, before in zip(found[:-1], choice[:-1], strict=True))
    a, before, n = choice[0], choice[-1], found[-1]
    switched = n != before
    assert (known[n[switched]] == labels[a[switched]]).all()
    assert (known[n[~switched]] != labels[a[~switched]]).all()
    if not against:
        assert (n[switched] != a[switched]).all()
    if not pairs and against:
        alone = torch.bincount(references, minlength=CLASSES + 1)[labels[a]] == 1
        assert ((n == choice[1]) == (switched & alone)).all()  # the positive itself only if there is no other


def test_a_negative_stays_where_the_class_has_no_other_item():
    labels = torch.tensor([0, 1, 2])
    choice = (torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([1, 2]))
    found = SwitchedNegatives(Fixed(choice), 0.99)(torch.randn(3, 2), labels)
    assert torch.equal(found[-1], choice[-1])


def test_of_a_miner_that_chooses_nothing_all_pairs_are_taken():
    embeddings, labels = batch()
    a, p, b, n = SwitchedNegatives(Fixed(None), 0.4)(embeddings, labels)
    same = (labels[:, None] == labels).fill_diagonal_(False)
    assert torch.equal(torch.stack([a, p]), torch.stack(torch.where(same)))
    assert torch.equal(b, torch.where(labels[:, None] != labels)[0])
    switched = labels[b] == labels[n]
    assert switched.float().mean().item() == pytest.approx(0.4, abs=0.1)
    assert (n != b).all()
    a, p, b, n = SwitchedNegatives(Fixed(None), 0.4)(embeddings, labels, embeddings[:9], labels[:9])
    assert torch.equal(torch.stack([a, p]), torch.stack(torch.where(labels[:, None] == labels[:9])))


def test_no_share_is_the_miner_itself():
    embeddings, labels = batch()
    plain, off = objective_of(0.0), objective_of(0)
    assert torch.equal(plain(embeddings, labels), off(embeddings, labels))
    assert plain.state_dict().keys() == off.state_dict().keys() == set()
    miner = Fixed(None)
    assert switching(miner, 0.0, 0) is miner


@pytest.mark.parametrize("miner", miners.names())
def test_draws_go_on_where_a_checkpoint_stands(miner):
    embeddings, labels = batch(6)
    state = torch.get_rng_state()
    first, again, other = (objective_of(0.5, "margin", seed, miner=miner) for seed in (0, 0, 1))
    values = [first.miner(embeddings, labels)[-1].tolist() for _ in range(2)]
    kept = {name: value.clone() for name, value in first.state_dict().items()}
    values.append(first.miner(embeddings, labels)[-1].tolist())
    assert values == [again.miner(embeddings, labels)[-1].tolist() for _ in range(3)]
    assert values[0] != values[1]
    assert values[0] != other.miner(embeddings, labels)[-1].tolist()
    resumed = objective_of(0.5, "margin", miner=miner)
    resumed.load_state_dict(kept)
    assert resumed.miner(embeddings, labels)[-1].tolist() == values[2]
    assert torch.equal(state, torch.get_rng_state())


def test_draws_are_apart_from_those_of_a_drawing_miner():
    """With one stream for both, the negatives switched would be those of certain positives."""
    embeddings, labels = batch(6)
    objective = objective_of(0.5, "growing-triplet", miner="random")
    plain = objective_of(0.0, "growing-triplet", miner="random")
    share = np.mean(
        [
            (objective.miner(embeddings, labels)[2] != plain.miner(embeddings, labels)[2]).float().mean().item()
            for _ in range(100)
        ]
    )
    assert share == pytest.approx(0.5, abs=0.03)
    assert torch.equal(objective.miner(embeddings, labels)[1], plain.miner(embeddings, labels)[1])


@pytest.mark.parametrize("loss", TAKERS)
def test_every_loss_that_goes_by_negatives_feels_it(loss):
    embeddings, labels = batch()
    embeddings.requires_grad_()
    wide = {"parameters": {"neg_margin": 1.5}} if loss == "contrastive" else {}
    plain, switched = (objective_of(share, loss, miner="all", **wide) for share in (0.0, 0.6))
    value = switched(embeddings, labels)
    assert value.item() != pytest.approx(plain(embeddings, labels).item())
    value.backward()
    assert embeddings.grad.isfinite().all()
    if losses.get(loss).references:
        assert switched.against(embeddings, labels, embeddings.detach(), labels).isfinite()


def test_the_value_is_that_of_a_loop_over_the_switched_pairs():
    embeddings, labels = batch()
    margins = {"pos_margin": 0.1, "neg_margin": 1.2}
    objective = objective_of(0.3, "contrastive", parameters=margins)
    copy = objective_of(0.3, "contrastive", parameters=margins)
    a, p, b, n = copy.miner(embeddings, labels)
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    pull = [max(0.0, (unit[i] - unit[j]).norm().item() - 0.1) for i, j in zip(a, p, strict=True)]
    push = [max(0.0, 1.2 - (unit[i] - unit[j]).norm().item()) for i, j in zip(b, n, strict=True)]
    expected = sum(np.mean([value for value in terms if value > 0]) for terms in (pull, push))
    assert objective(embeddings, labels).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "loss", ["proxy-anchor", "n-pairs", "contrastive-cosine", "angular", "supcon", "circle", "multi-similarity"]
)
def test_losses_without_mined_negatives_are_refused(loss):
    with pytest.raises(RecipeError, match=r"objective\.switch"):
        ObjectiveSection(loss=loss, switch=0.2)
    assert ObjectiveSection(loss=loss).switch == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, "many"])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="switch"):
        ObjectiveSection(loss="triplet", switch=share)


def test_recipes_of_old_keep_their_digest():
    recipe = load_recipe("triplet")
    old = recipe.model_dump(mode="json")
    del old["objective"]["switch"]
    first, second = Candidate("a", recipe), Candidate("a", Recipe.model_validate(old))
    assert "switch" not in first.content()["objective"]
    assert first.digest() == second.digest()
    switched = load_recipe("triplet", overrides=["objective.switch=0.2"])
    assert Candidate("a", switched).digest() != first.digest()
    assert first.difference(switched.model_dump(mode="json")).startswith("objective.switch was 0.2")
