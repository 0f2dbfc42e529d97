"""Attention of stages to the last vector, against sums over positions written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.errors import ModelError, RecipeError
from nearkin.models import Embedder, ModelSection, build_embedder
from nearkin.models.attention import StageAttention, default_stages

SCORES = ["additive", "multiplicative", "multi-dimensional"]
WIDTHS = {"early": 3, "late": 5}
LAST = 4


def attention(score: str = "additive", matrices: int = 1, **options) -> StageAttention:
    """Attention whose weights are all random, in double precision."""
    torch.manual_seed(0)
    made = StageAttention(WIDTHS, LAST, score=score, matrices=matrices, **options).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def inputs(batch: int = 2, seed: int = 1) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    maps = {
        "early": torch.randn(batch, 3, 4, 3, generator=draw, dtype=torch.float64),
        "late": torch.randn(batch, 5, 2, 2, generator=draw, dtype=torch.float64),
    }
    return maps, torch.randn(batch, LAST, generator=draw, dtype=torch.float64)


def naive_scores(made: StageAttention, stage: str, q: np.ndarray, u: np.ndarray) -> np.ndarray:
    """S(q, u) by its definition: one number, or one for each channel."""
    weights = {name: value.detach().numpy() for name, value in made.scores[stage].named_parameters()}
    second = weights["outer.weight"] @ u if "outer.weight" in weights else u
    if made.to_dict()["score"] == "multiplicative":
        return np.array([(weights["inner.weight"].T @ q) @ second])
    inner = weights["inner.weight"][:, :, 0, 0]
    return weights["score.weight"][:, :, 0, 0] @ np.tanh(inner @ q + second)


def naive_attended(made: StageAttention, stage: str, map_: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p (C,) and the weights (H, W), averaged over channels, of one sample's map (C, H, W)."""
    channels, height, width = map_.shape
    vectors = [map_[:, row, column] for row in range(height) for column in range(width)]
    scores = np.stack([naive_scores(made, stage, q, u) for q in vectors])
    exponentials = np.exp(scores - scores.max(0))
    shares = exponentials / exponentials.sum(0)
    attended = np.zeros(channels)
    for share, q in zip(shares, vectors, strict=True):
        attended += share * q
    return attended, shares.mean(1).reshape(height, width)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("matrices", [1, 2])
def test_features_and_weights_equal_loops_over_positions(score: str, matrices: int) -> None:
    made = attention(score, matrices, **({"hidden": 7} if matrices == 2 else {}))
    maps, u = inputs()
    features, weights = made(maps, u), made.weights(maps, u)
    for sample in range(2):
        parts = []
        for stage in WIDTHS:
            p, shares = naive_attended(made, stage, maps[stage][sample].numpy(), u[sample].numpy())
            parts.append(p)
            assert weights[stage][sample].detach().numpy() == pytest.approx(shares, abs=1e-12)
        expected = np.concatenate([*parts, u[sample].numpy()])
        assert features[sample].detach().numpy() == pytest.approx(expected, abs=1e-12)


def test_fusion_by_sum_adds_projections_and_the_last_vector() -> None:
    made = attention(fusion="sum")
    maps, u = inputs()
    expected = u.clone()
    for stage in WIDTHS:
        p = torch.stack(
            [
                torch.from_numpy(naive_attended(made, stage, m.numpy(), v.numpy())[0])
                for m, v in zip(maps[stage], u, strict=True)
            ]
        )
        expected = expected + p @ made.projections[stage].weight.T
    assert torch.allclose(made(maps, u), expected, atol=1e-12)
    alone = attention(fusion="sum", append=False)
    assert torch.allclose(alone(maps, u), expected - u, atol=1e-12)


def test_normalised_vectors_are_of_one_scale() -> None:
    made = attention(normalise=True)
    maps, u = inputs()
    plain = attention()({**maps, "early": 100 * maps["early"]}, u).split([3, 5, LAST], dim=1)
    found = made({**maps, "early": 100 * maps["early"]}, u).split([3, 5, LAST], dim=1)
    for raw, scaled in zip(plain, found, strict=True):
        deviation = raw - raw.mean(1, keepdim=True)
        expected = deviation / (deviation.square().mean(1, keepdim=True) + 1e-5).sqrt()
        assert torch.allclose(scaled, expected, atol=1e-9)


@pytest.mark.parametrize("append", [True, False])
@pytest.mark.parametrize("fusion", ["concatenate", "sum"])
def test_out_channels_is_the_size_of_the_features(append: bool, fusion: str) -> None:
    made = attention(append=append, fusion=fusion)
    maps, u = inputs()
    assert made(maps, u).shape == (2, made.out_channels)


@given(
    score=st.sampled_from(SCORES),
    matrices=st.sampled_from([1, 2]),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    scale=st.floats(0.01, 100),
)
@settings(deadline=None, max_examples=60)
def test_weights_sum_to_one_over_positions(score: str, matrices: int, height: int, width: int, scale: float) -> None:
    made = attention(score, matrices)
    maps = {stage: torch.randn(2, channels, height, width).double() * scale for stage, channels in WIDTHS.items()}
    for stage, weights in made.weights(maps, torch.randn(2, LAST).double()).items():
        assert weights.shape == (2, height, width), stage
        assert weights.sum((1, 2)).tolist() == pytest.approx([1.0, 1.0], abs=1e-9)
        assert bool((weights >= 0).all())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("matrices", [1, 2])
def test_constant_scores_are_average_pooling(score: str, matrices: int) -> None:
    torch.manual_seed(0)
    fresh = StageAttention(WIDTHS, LAST, score=score, matrices=matrices).double()  # as training finds it
    maps, u = inputs()
    expected = torch.cat([maps["early"].mean((2, 3)), maps["late"].mean((2, 3)), u], dim=1)
    assert torch.allclose(fresh(maps, u), expected, atol=1e-12)
    if matrices == 1:
        average = StageAttention(WIDTHS, LAST, score="average").double()
        assert torch.allclose(average(maps, u), expected, atol=1e-12)
        assert not list(average.parameters())
    # Constant but not zero: without W1 a score knows nothing of q.
    made = attention(score, matrices)
    for stage in WIDTHS:
        torch.nn.init.zeros_(made.scores[stage].inner.weight)
    assert torch.allclose(made(maps, u), expected, atol=1e-12)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("matrices", [1, 2])
def test_gradients(score: str, matrices: int) -> None:
    made = attention(score, matrices)
    maps, u = inputs()
    tensors = [maps["early"].requires_grad_(), maps["late"].requires_grad_(), u.requires_grad_()]
    assert torch.autograd.gradcheck(lambda a, b, c: made({"early": a, "late": b}, c), tensors)
    assert all(parameter.grad is None for parameter in made.parameters())
    made(maps, u).square().sum().backward()
    assert all(bool(parameter.grad.abs().sum() > 0) for parameter in made.parameters())


@pytest.mark.parametrize("score", SCORES)
def test_attention_learns_from_its_flat_start(score: str) -> None:
    """One of two patterns tells the classes apart; attention must find it."""
    torch.manual_seed(0)
    made = StageAttention({"early": 4}, 4, score=score, append=False)
    head = torch.nn.Linear(4, 2)
    optimiser = torch.optim.Adam([*made.parameters(), *head.parameters()], lr=0.03)
    draw = torch.Generator().manual_seed(0)
    for _ in range(150):
        labels = torch.randint(2, (64,), generator=draw)
        maps = torch.zeros(64, 4, 3, 3)
        maps[:, 2:] = 2 * torch.randn(64, 2, 3, 3, generator=draw)
        place = torch.randint(9, (64,), generator=draw)
        signs = 2.0 * labels - 1.0
        maps.flatten(2)[torch.arange(64), 0, place] = signs
        maps.flatten(2)[torch.arange(64), 1, place] = 3.0
        maps[:, 2:].flatten(2)[torch.arange(64), :, place] = 0
        u = torch.ones(64, 4)
        loss = torch.nn.functional.cross_entropy(head(made({"early": maps}, u)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    weights = made.weights({"early": maps}, u)["early"].detach().flatten(1)
    assert float(weights[torch.arange(64), place].mean()) > 2 / 9


def test_refusals() -> None:
    with pytest.raises(ModelError, match=r"model\.attention\.stages"):
        StageAttention({}, 4)
    with pytest.raises(ModelError, match=r"model\.attention\.hidden"):
        StageAttention(WIDTHS, 4, hidden=3)
    with pytest.raises(ModelError, match=r"model\.attention\.matrices"):
        StageAttention(WIDTHS, 4, score="average", matrices=2)
    with pytest.raises(ModelError, match=r"model\.attention\.matrices"):
        ModelSection(attention={"score": "average", "matrices": 2})
    with pytest.raises(ModelError, match="trunk"):
        default_stages(["trunk"])
    with pytest.raises(RecipeError, match="stage1"):
        ModelSection(attention={"stages": ["stage1", "stage1"]})
    with pytest.raises(ModelError, match=r"model\.attention\.hidden"):
        ModelSection(attention={"hidden": 3})
    with pytest.raises(ModelError, match=r"model\.attention\.hidden"):
        ModelSection(attention={"score": "average", "hidden": 3})
    with pytest.raises(RecipeError, match=r"model\.attention\.stages"):
        ModelSection(attention={"stages": []})


@pytest.mark.parametrize("other", [True, False, "additive", ["stage1"], 3])
def test_what_is_not_a_set_of_settings_is_told_the_form(other: object) -> None:
    with pytest.raises(RecipeError, match=r"model\.attention"):
        ModelSection(attention=other)


SMALL = {"backbone": "resnet20", "size": 16, "dimension": 6}


def small(**attention_options) -> Embedder:
    torch.manual_seed(0)
    embedder = build_embedder(ModelSection(**SMALL, attention=attention_options)).eval()
    for parameter in embedder.attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return embedder


def test_the_three_stages_before_the_last_are_attended_unless_others_are_named() -> None:
    assert small().attention.stages == ("stem", "stage1", "stage2")
    assert small(stages=["stage2", "stem"]).attention.stages == ("stem", "stage2")
    with pytest.raises(ModelError, match="stage3"):
        small(stages=["stage3"])
    with pytest.raises(ModelError, match="stage9"):
        small(stages=["stage9"])


def test_the_embedder_uses_its_own_maps_and_saves_its_attention(tmp_path) -> None:
    embedder = small(score="multi-dimensional", matrices=2, hidden=3)
    x = torch.randn(2, 3, 16, 16)
    maps = embedder.backbone.maps(x)
    u = maps["stage3"].mean((2, 3))
    expected = embedder.head(embedder.attention({stage: maps[stage] for stage in embedder.attention.stages}, u))
    assert torch.allclose(embedder(x), expected, atol=1e-6)
    assert embedder.feature_size == 16 + 16 + 32 + 64
    embedder.save(tmp_path / "model.safetensors")
    again = Embedder.load(tmp_path / "model.safetensors")
    assert torch.equal(again(x), embedder(x))
    assert again.fingerprint() == embedder.fingerprint() != small().fingerprint()


def test_without_a_head_the_features_are_the_embedding() -> None:
    section = ModelSection(**(SMALL | {"dimension": None}), attention={"append": False})
    embedder = build_embedder(section)
    assert embedder.dimension == 64
    assert embedder(torch.randn(2, 3, 16, 16)).shape == (2, 64)


@pytest.mark.parametrize("at", ["stem", "stage1", "stage2", "stage3", "pooling"])
def test_a_cut_model_goes_on_to_the_same_embedding(at: str) -> None:
    embedder = small(stages=["stem", "stage2"])
    x = torch.randn(3, 3, 16, 16)
    parts = embedder.cut(x, at)
    assert list(parts) == embedder.places(at)
    assert list(parts)[-1] == at
    assert torch.allclose(embedder(parts, start=at), embedder(x), atol=1e-6)
    assert torch.allclose(embedder.pooled(parts, start=at), embedder.pooled(x), atol=1e-6)


def test_a_lone_map_will_do_where_no_earlier_stage_is_attended() -> None:
    embedder = small(stages=["stage1", "stage2"])
    x = torch.randn(3, 3, 16, 16)
    assert torch.allclose(embedder(embedder.backbone(x, stop="stage1"), start="stage1"), embedder(x), atol=1e-6)


def test_a_model_that_lacks_a_map_says_so() -> None:
    embedder = small(stages=["stem", "stage2"])
    x = torch.randn(2, 3, 16, 16)
    with pytest.raises(ModelError, match="stem"):
        embedder(embedder.backbone(x, stop="stage1"), start="stage1")
    with pytest.raises(ModelError, match="start"):
        embedder(embedder.cut(x, "stage1"))
    with pytest.raises(ModelError, match="start"):
        embedder(embedder.cut(x, "stage1"), start="stage3")


def test_attributes_and_attention_go_together() -> None:
    section = ModelSection(
        **SMALL, attention={}, local_dimension=8, pooling="gsp", pooling_parameters={"prototypes": 4}
    )
    embedder = build_embedder(section).eval()
    x = torch.randn(2, 3, 16, 16)
    raw, attributes = embedder.with_attributes(x)
    assert attributes.shape == (2, 4)
    assert torch.allclose(raw, embedder(x), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_do_not_overflow(dtype: torch.dtype) -> None:
    made = StageAttention({"early": 3}, LAST, score="multiplicative")
    torch.nn.init.ones_(made.scores["early"].inner.weight)
    maps, u = torch.full((2, 3, 4, 4), 300.0), torch.full((2, LAST), 100.0)  # scores of 360,000
    for held in (maps, maps.to(dtype)):
        with torch.autocast("cpu", dtype):
            features = made({"early": held}, u)
        assert bool(features.isfinite().all())
        assert math.isclose(features[0, 0].item(), 300.0, rel_tol=1e-2)
