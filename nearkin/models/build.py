"""From the `model` section of a recipe to an embedder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearkin.data.audio import LogMelTransform
from nearkin.data.inputs import InputSpec
from nearkin.data.section import AudioSection
from nearkin.errors import CheckpointError, ModelError
from nearkin.models.attention import StageAttention, default_stages
from nearkin.models.backbones import Backbone, make_backbone
from nearkin.models.card import Card
from nearkin.models.embedder import Embedder
from nearkin.models.pooling import make_pooling
from nearkin.models.section import AUTO, DEFAULT_DIMENSION, ModelSection
from nearkin.models.similarity import PairSimilarity
from nearkin.models.similarity_model import SimilarityModel
from nearkin.spaces import make_space

_MODEL_OF_A_RUN = "model.safetensors"
_ALL_PARTS = ("backbone", "local", "pooling", "attention", "size_feature", "head")


def build_embedder(
    section: ModelSection,
    seed: int = 0,
    audio_seconds: float | None = None,
    classes: Sequence[str] = (),
    dense: bool = True,
    audio: AudioSection | None = None,
) -> Embedder:
    """Build what a recipe asks for, frozen as it says; torch's global random state is left as it was.

    Args:
        section: the recipe's model section; a dimension that is yet to be chosen is 128 until then.
        seed: the same seed draws the same weights.
        audio_seconds: length of an audio crop; ignored for images.
        classes: names of the training classes; only a model with a learned similarity must know.
        dense: whether such a model has a dense layer besides.
        audio: the recipe's features of recordings; None: bands are centred. A model that goes on from another one, or
            from its backbone, keeps the features of that.
    """
    path, saved = _read_saved(section)
    dimension = DEFAULT_DIMENSION if section.dimension == AUTO else section.dimension
    if saved is not None and section.start is not None and section.dimension == AUTO:
        dimension = saved.dimension if isinstance(saved.head, nn.Linear) else None
    architecture = section.model_dump(
        include={"local_dimension", "attention", "similarity", "freeze", "frozen_batch_norm"}
    ) | {
        "backbone": {"name": section.backbone, **section.model_dump(include={"pretrained", "channels", "size"})},
        "pooling": {"name": section.pooling, "parameters": section.pooling_parameters},
        "dimension": dimension,
        "size_feature": section.size_feature is not None,
        "space": {"name": section.space, **section.space_parameters},
    }
    if section.similarity is not None:
        architecture["similarity"] |= {"classes": list(classes), "dense": dense}
    embedder = assemble(architecture, pretrained=section.pretrained, seed=seed)
    if saved is not None:
        _take(embedder, saved, path, _ALL_PARTS if section.start is not None else ("backbone",))
        if section.start is not None and embedder.backbone.config is not None:
            embedder.backbone.config["pretrained"] = saved.pretrained
    if section.drop_path:
        embedder.backbone.drop_paths(section.drop_path)
    spec = replace(embedder.spec, fit=section.fit, resize=section.resize, size_feature=section.size_feature)
    if spec.kind == "audio":
        spec = _of_recordings(spec if saved is None else saved.spec, audio_seconds, audio if saved is None else None)
    embedder.take(spec)
    return embedder


def _of_recordings(spec: InputSpec, seconds: float | None, audio: AudioSection | None) -> InputSpec:
    """An input of recordings, cut in training to `seconds`, with the features that are asked for or those it has."""
    if seconds is not None:
        spec = replace(spec, frames=LogMelTransform(replace(spec, frames=None), seconds).frames)
    return spec if audio is None else replace(spec, bands=audio.bands, trim=audio.trim)


def pretrained_baseline(embedder: Embedder) -> Embedder:
    """The same backbone with its pretrained weights, average pooling and no head: what training must beat."""
    architecture = {**embedder.architecture(), "local_dimension": None, "dimension": None, "freeze": "all"}
    architecture["attention"] = architecture["similarity"] = None
    architecture["size_feature"] = False
    architecture["pooling"] = {"name": "gap", "parameters": {}}
    return assemble(architecture, pretrained=True)


def assemble(architecture: dict[str, Any], *, pretrained: bool, seed: int = 0) -> Embedder:
    """Build an embedder from its description.

    Args:
        architecture: what `Embedder.architecture` gives; "input" may be missing.
        pretrained: whether to load pretrained weights; a checkpoint brings its own.
        seed: seed of fresh weights.
    """
    wanted = architecture["backbone"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = make_backbone(**wanted | {"pretrained": pretrained})
        local_dimension = architecture.get("local_dimension")
        local = None if local_dimension is None else nn.Conv2d(backbone.channels, local_dimension, 1)
        kind, parameters = architecture["pooling"]["name"], architecture["pooling"]["parameters"]
        pooling = make_pooling(kind, local_dimension or backbone.channels, **parameters)
        if pooling.needs_map_size:
            pooling.set_map_size(*_map_size(backbone, kind))
        attention = _attention(architecture.get("attention"), backbone, pooling.out_channels)
        features = pooling.out_channels if attention is None else attention.out_channels
        dimension = architecture["dimension"]
        head: nn.Module = nn.Identity() if dimension is None else nn.Linear(features, dimension)
        if backbone.config is not None:
            backbone.config["pretrained"] = wanted["pretrained"]
        if "input" in architecture:
            backbone.spec = InputSpec.from_dict(architecture["input"])
        space = make_space(**architecture["space"])
        sizes = None
        if architecture.get("size_feature"):
            # Zero, so that a model begins as it would without sizes; drawn after all else.
            sizes = nn.Linear(2, features)
            nn.init.zeros_(sizes.weight)
            nn.init.zeros_(sizes.bias)
        embedder = Embedder(backbone, pooling, head, space, local=local, attention=attention, size_feature=sizes)
        if similarity := architecture.get("similarity"):
            options = {key: value for key, value in similarity.items() if key not in ("classes", "dense")}
            network = PairSimilarity(embedder.dimension, **options)
            embedder = SimilarityModel(embedder, network, similarity["classes"], similarity["dense"])
    embedder.freeze(architecture["freeze"], architecture["frozen_batch_norm"])
    return embedder


@torch.no_grad()
def _map_size(backbone: Backbone, pooling: str) -> tuple[int, int]:
    """Height and width of the last map of a fresh backbone, found by a run of it."""
    spec = backbone.spec
    if spec.kind == "audio":
        raise ModelError(
            f"The pooling '{pooling}' is for maps of one size, and those of audio are as long as the clip: set "
            "model.pooling to 'stats' or another."
        )
    height, width = backbone.eval()(torch.zeros(1, spec.channels, spec.size, spec.size)).shape[2:]
    backbone.train()
    return height, width


def _attention(wanted: dict[str, Any] | None, backbone: Backbone, last: int) -> StageAttention | None:
    """The attention that a description asks for, to vectors of size `last`."""
    if wanted is None:
        return None
    names = backbone.stage_names
    usual = default_stages(names)  # first: a backbone of one stage has none to name
    stages = usual if wanted["stages"] is None else wanted["stages"]
    unknown = [stage for stage in stages if stage not in names]
    if unknown:
        raise ModelError(
            f"model.attention.stages names '{unknown[0]}', and the stages before the last are "
            f"{', '.join(names[:-1])}: choose among these."
        )
    places = [names.index(stage) for stage in stages]
    if len(names) - 1 in places:
        raise ModelError(
            f"The last stage, '{names[-1]}', gives the vector that the others are attended to: leave it out of "
            "model.attention.stages."
        )
    widths = {names[place]: backbone.widths[names[place]] for place in sorted(places)}
    return StageAttention(widths, last, **{key: value for key, value in wanted.items() if key != "stages"})


def _read_saved(section: ModelSection) -> tuple[Path, Embedder | None]:
    """The file, perhaps of a run, that a model is to begin from, and the model in it."""
    path, sha256 = Path(section.start or section.weights or ""), section.weights_sha256
    if section.start is None and section.weights is None:
        return path, None
    path = path / _MODEL_OF_A_RUN if path.is_dir() else path
    if sha256 is not None and path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise CheckpointError(
            f"{path} is not the file that model.weights_sha256 names ({sha256[:12]}…): restore it or change the recipe."
        )
    return path, Embedder.load(path)


def _take(embedder: Embedder, saved: Embedder, path: Path, parts: tuple[str, ...]) -> None:
    """Give a model parts of a saved one, statistics included; its other parts stay fresh.

    The card says which classes the saved model knew, from its own training and from what it started from.
    """
    if len(parts) > 1 and isinstance(saved, SimilarityModel):
        raise ModelError(
            f"{path} holds a learned similarity, which model.start cannot go on from: set model.weights to it, which "
            "takes the backbone alone."
        )
    if saved.backbone_name != embedder.backbone_name or _shapes(saved.backbone) != _shapes(embedder.backbone):
        there, wanted = (
            f"'{one.backbone_name}' of {one.spec.channels} input channels at {one.spec.size} px"
            for one in (saved, embedder)
        )
        raise ModelError(
            f"{path} holds the backbone {there} but the recipe asks for {wanted}: set "
            f"backbone, channels and size of the model section as in the file, or choose another."
        )
    for name in parts[1:]:
        theirs, ours = getattr(saved, name), getattr(embedder, name)
        if _shapes(theirs) != _shapes(ours):
            raise _unlike(path, name, saved, embedder)
    for name in parts:
        if (part := getattr(embedder, name)) is not None:
            part.load_state_dict(getattr(saved, name).state_dict())
    known = {*saved.card.classes.train, *(saved.card.started_from or {}).get("classes", [])}
    told = {"file": str(path), "classes": sorted(known)}
    embedder.card = Card(started_from=told | ({"parts": list(parts)} if len(parts) > 1 else {}))


def _shapes(part: nn.Module | None) -> dict[str, torch.Size]:
    return {} if part is None else {name: value.shape for name, value in part.state_dict().items()}


def _unlike(path: Path, name: str, saved: Embedder, embedder: Embedder) -> ModelError:
    """What to change where a part of a saved model has another shape than the recipe's."""
    if name == "head":
        there, wanted = (
            f"a head from {one.feature_size} to {one.dimension}" if isinstance(one.head, nn.Linear) else "no head"
            for one in (saved, embedder)
        )
        size = saved.dimension if isinstance(saved.head, nn.Linear) else "null"
        return ModelError(
            f"{path} has {there} dimensions and the recipe asks for {wanted}: set model.dimension to {size} and "
            "pooling and attention as in the file, or take the backbone alone by model.weights in place of model.start."
        )
    known = {"local": "1x1 convolution (model.local_dimension)", "pooling": "model.pooling"}.get(name, f"model.{name}")
    return ModelError(
        f"The {known} of {path} is not shaped as the recipe's: set it as in the file, or take the backbone alone by "
        "model.weights in place of model.start."
    )
