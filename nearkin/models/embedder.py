"""The embedder: backbone, pooling, attention, head and space, from a sample to a vector."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nearkin.data.augment import Normalise
from nearkin.data.dataset import Dataset
from nearkin.data.inputs import InputSpec
from nearkin.errors import CheckpointError, ModelError, NearkinError
from nearkin.models import shorten
from nearkin.models.attention import StageAttention
from nearkin.models.backbones.base import Backbone
from nearkin.models.card import Card
from nearkin.models.engines import TORCH, Encoder, make_encoder
from nearkin.models.items import Items, open_items
from nearkin.models.pooling.base import Pooling
from nearkin.spaces import Space
from nearkin.storage import replacing

Features = Tensor | dict[str, Tensor]
"""Inputs, or what a stage gives, (B, ...); or several of these by the names of their stages."""


def to_device(features: Features, device: torch.device, non_blocking: bool = False) -> Features:
    """The same on another device."""
    if isinstance(features, Tensor):
        return features.to(device, non_blocking=non_blocking)
    return {name: value.to(device, non_blocking=non_blocking) for name, value in features.items()}


@dataclass(frozen=True, eq=False)
class ClassScores:
    """A classifier on embeddings.

    Attributes:
        names: of the C classes.
        scores: points of the space (B, d) to scores (B, C), whose softmax are the class probabilities; differentiable.
    """

    names: tuple[str, ...]
    scores: Callable[[Tensor], Tensor]


POOLING = "pooling"
"""As a place, where a sample is a vector: after the pooling, to enter or to cut; for `features`, before the head."""

SIZE = "size"
"""As a place: ln width and ln height (B, 2) of the images, for a model that takes them."""

ALL = "all"
"""As a stage to freeze up to: the last one."""


class Embedder(nn.Module):
    """Turns samples into points of a space.

    Args:
        backbone: from a normalised input to a feature map.
        pooling: from the map, after `local`, to a vector.
        head: from the vector to the raw embedding; `nn.Identity()` for none.
        space: where embeddings are compared.
        card: what is known of the model, or its JSON form.
        local: from one vector of the map to another, a 1x1 convolution; None leaves the map as it is.
        attention: from the maps of earlier stages and the pooled vector to the features that the head takes; None: the
            pooled vector is all.
        size_feature: from ln width and ln height of an image to what is added to these features; None: nothing.
    """

    def __init__(
        self,
        backbone: Backbone,
        pooling: Pooling,
        head: nn.Module,
        space: Space,
        card: Card | Mapping[str, Any] | None = None,
        local: nn.Module | None = None,
        attention: StageAttention | None = None,
        size_feature: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.size_feature = size_feature
        self.local = nn.Identity() if local is None else local
        self.pooling = pooling
        self.attention = attention
        self.head = head
        self.space = space
        self.card = Card() if card is None else card
        self.normalise = Normalise(backbone.spec)
        self.frozen_upto: str | None = None
        self.frozen_batch_norm = False

    @property
    def card(self) -> Card:
        """What is known of the model: recipe, data, metrics, versions."""
        return self._card

    @card.setter
    def card(self, card: Card | Mapping[str, Any]) -> None:
        self._card = card if isinstance(card, Card) else Card.from_dict(card)

    @property
    def spec(self) -> InputSpec:
        """What the model takes."""
        return self.backbone.spec

    def take(self, spec: InputSpec) -> None:
        """Be a model of other inputs: of another size, or with other statistics; the weights stay."""
        self.backbone.spec = spec
        self.normalise = Normalise(spec).to(self.normalise.mean.device)

    @property
    def feature_size(self) -> int:
        """Size of what the head takes."""
        return self.pooling.out_channels if self.attention is None else self.attention.out_channels

    @property
    def dimension(self) -> int:
        """Size of an embedding."""
        return self.head.out_features if isinstance(self.head, nn.Linear) else self.feature_size

    @property
    def backbone_name(self) -> str:
        """Name of the backbone in the registry."""
        return type(self.backbone).__name__ if self.backbone.config is None else self.backbone.config["name"]

    def taught_by_loss(self) -> list[nn.Module]:
        """Parts that no embedding passes through: a loss that is given them teaches them."""
        return []

    @property
    def pretrained(self) -> bool:
        """Whether the backbone began with pretrained weights."""
        return self.backbone.config is not None and bool(self.backbone.config["pretrained"])

    def forward(self, x: Features, start: str | None = None) -> Tensor:
        """Raw embeddings (B, d).

        Args:
            x: normalised inputs (B, C, H, W), or what comes out of `start`; where stages up to there are attended to,
                a dictionary of these and of `start` by name.
            start: a stage of the backbone, then `x` is its map; "pooling", then `x` is pooled (B, C').
        """
        return self.head(self.pooled(x, start))

    def with_attributes(self, x: Features, start: str | None = None) -> tuple[Tensor, Tensor]:
        """Raw embeddings (B, d), and the attributes (B, M) that the pooling gives; arguments as of `forward`."""
        features, attributes = self.pooled_with_attributes(x, start)
        return self.head(features), attributes

    def pooled(self, x: Features, start: str | None = None) -> Tensor:
        """The features (B, F) that the head takes; arguments as of `forward`."""
        if start == POOLING:
            u, attended = self._split(x, start)
            return self._attend(u, attended)
        return self.merge(*self.maps(x, start))

    def pooled_with_attributes(self, x: Features, start: str | None = None) -> tuple[Tensor, Tensor]:
        """The features (B, F) that the head takes, and the attributes (B, M) that the pooling gives."""
        local, attended = self.maps(x, start)
        u, attributes = self.pooling.with_attributes(local)
        return self._attend(u, attended), attributes

    def maps(self, x: Features, start: str | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The map (B, C', H', W') that is pooled, and the attended stages' by name; arguments as of `forward`."""
        map_, attended = self._split(x, start)
        map_ = self._run(map_, self.backbone.between(start, None), self.attended_stages, attended)
        return self.local(map_), attended

    def merge(self, local: Tensor, attended: dict[str, Tensor]) -> Tensor:
        """The features (B, F) that the head takes, of what `maps` gives."""
        return self._attend(self.pooling(local), attended)

    def local_features(self, x: Features, start: str | None = None) -> Tensor:
        """The map (B, C', H', W') that is pooled; arguments as of `forward`."""
        return self.maps(x, start)[0]

    @property
    def attended_stages(self) -> list[str]:
        """The stages whose maps are attended to, first to last."""
        return [] if self.attention is None else list(self.attention.stages)

    def _split(self, x: Features, start: str | None) -> tuple[Tensor, dict[str, Tensor]]:
        """What enters at `start`, and the maps of the attended stages up to there; sizes of images among them."""
        if isinstance(x, Tensor):
            if start is None and self.spec.size_feature is not None:
                channels = self.spec.channels
                return x[:, :channels], {SIZE: x[:, channels:, 0, 0]}
            return x, {name: x for name in self.attended_stages if name == start}
        if start is None or start not in x:
            raise ModelError(f"For features by name ({', '.join(x)}), pass start= to say where they enter the model.")
        return x[start], {name: x[name] for name in (*self.attended_stages, SIZE) if name in x}

    def _run(self, map_: Tensor, stages: list[str], wanted: list[str], found: dict[str, Tensor]) -> Tensor:
        """The map after some stages; on the way, those of the wanted ones are put into `found`."""
        for name in stages:
            map_ = self.backbone.stages[name](map_)
            if name in wanted:
                found[name] = map_
        return map_

    def _attend(self, u: Tensor, attended: dict[str, Tensor]) -> Tensor:
        features = u if self.attention is None else self.attention(attended, u)
        if self.size_feature is None:
            return features
        if SIZE not in attended or not attended[SIZE].shape[1]:
            raise ModelError(
                "This model also takes the sizes of images (model.size_feature): pass samples as its loaders give them."
            )
        return features + self.size_feature(attended[SIZE].to(features.dtype))

    def embed(self, x: Features, start: str | None = None) -> Tensor:
        """Points of the space (B, d); arguments as of `forward`."""
        return self.space.project(self(x, start=start))

    def features(self, x: Tensor, at: str) -> Tensor:
        """What normalised inputs (B, C, H, W) are at a stage of the backbone, or before the head ("pooling")."""
        return self.pooled(x) if at == POOLING else self.backbone(self._split(x, None)[0], stop=at)

    def places(self, at: str) -> list[str]:
        """What a model needs to go on from `at`: sizes, the attended stages up to there, and `at` itself."""
        reached = self.backbone.between(None, None if at == POOLING else at)
        sizes = [] if self.size_feature is None else [SIZE]
        return sizes + [name for name in self.attended_stages if name in reached and name != at] + [at]

    def cut(self, x: Tensor, at: str) -> dict[str, Tensor]:
        """What normalised inputs (B, C, H, W) are at all `places` of `at`; `forward` goes on from there."""
        pixels, beside = self._split(x, None)
        found = {name: beside[name] for name in self.places(at) if name == SIZE}
        map_ = self._run(pixels, self.backbone.between(None, None if at == POOLING else at), self.places(at), found)
        if at == POOLING:
            found[at] = self.pooling(self.local(map_))
        return found

    def freeze(self, upto: str | None, frozen_batch_norm: bool = False) -> None:
        """Choose what of the backbone training leaves alone; the rest of it is made trainable.

        Args:
            upto: stages up to and including this one keep their weights and statistics; "all": every stage; None: none.
            frozen_batch_norm: batch norms of the other stages keep their statistics too, while their weights may train.
        """
        if upto is not None and upto != ALL:
            self.backbone.position(upto)
        self.frozen_upto = upto
        self.frozen_batch_norm = frozen_batch_norm
        self.backbone.requires_grad_(True)
        for name in self.frozen_stages:
            self.backbone.stages[name].requires_grad_(False)
        self.train(self.training)

    @property
    def frozen_stages(self) -> list[str]:
        """The frozen stages, first to last."""
        upto = self.frozen_upto
        return [] if upto is None else self.backbone.between(None, None if upto == ALL else upto)

    def frozen_prefixes(self) -> list[str]:
        """What the names of all weights and buffers that training never changes begin with."""
        return [f"backbone.stages.{name}." for name in self.frozen_stages]

    def train(self, mode: bool = True) -> Embedder:
        """Switch to training (or eval) mode; what is frozen stays in eval mode."""
        super().train(mode)
        for name in self.frozen_stages:
            self.backbone.stages[name].eval()
        for module in self.backbone.modules() if self.frozen_batch_norm else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def encode(
        self,
        items: Items,
        *,
        batch_size: int = 32,
        progress: bool = True,
        workers: int = 2,
        compile: bool = False,
        engine: str = TORCH,
    ) -> np.ndarray:
        """Embed anything: float32 (n, d), points of the space, in the order given.

        Args:
            items: a `Dataset`; the path of an image (or audio file), of a folder, zip or manifest; the bytes of an
                image file; a PIL image; an array of pixels, uint8 or float in [0, 1], (H, W), (H, W, 3), (n, H, W) or
                (n, H, W, 3); a tensor, of the same types, (C, H, W) or (n, C, H, W); or a list of such single items. A
                single item gives one row. Images are resized and cropped or padded as in evaluation; tensors and float
                arrays count as cropped already and are only brought to size. For audio: paths, bytes of files,
                waveforms at 16 kHz, or log-mel tensors.
            batch_size: samples that go through the network together.
            progress: show a bar.
            workers: threads that decode.
            compile: use `torch.compile`: a slow start, then somewhat faster; needs a C++ compiler.
            engine: what runs the network: "torch", or "onnx", for ONNX Runtime: faster on a CPU, vectors equal to 1e-4.
        """
        if compile and engine != TORCH:
            raise ModelError(f"Only the engine '{TORCH}' compiles: leave compile out, or the engine '{engine}'.")
        encoder = Encoder(self, compile=True) if compile else make_encoder(self, engine)
        return encoder.encode(items, batch_size=batch_size, progress=progress, workers=workers)

    def encode_pooled(
        self, items: Items, *, batch_size: int = 32, progress: bool = True, workers: int = 2
    ) -> np.ndarray:
        """Features before the head, float32 (n, F), not projected; arguments as of `encode`."""
        encoder = Encoder(self, at=POOLING)
        return encoder.encode(items, batch_size=batch_size, progress=progress, workers=workers)

    def shortened(self, dimension: int) -> Embedder:
        """A copy that gives the first dimensions of the raw embeddings; see `nearkin.models.shorten` for PCA."""
        return shorten.first_dimensions(self, dimension)

    def architecture(self) -> dict[str, Any]:
        """Everything but the weights, as JSON-safe values from which `Embedder.load` builds the model again."""
        if self.backbone.config is None or self.pooling.config is None:
            raise ModelError(
                "Only a model whose backbone and pooling come from make_backbone and make_pooling can be saved: "
                "register yours there."
            )
        if not isinstance(self.head, nn.Linear | nn.Identity):
            raise ModelError(f"Only a linear head or none can be saved, not {type(self.head).__name__}.")
        if not isinstance(self.local, nn.Conv2d | nn.Identity):
            raise ModelError(f"Only a convolution before the pooling can be saved, not {type(self.local).__name__}.")
        # Only where there is one: models made before there could be any keep their fingerprints.
        local = {"local_dimension": self.local.out_channels} if isinstance(self.local, nn.Conv2d) else {}
        return {
            "backbone": dict(self.backbone.config),
            "input": self.spec.to_dict(),
            **local,
            "pooling": dict(self.pooling.config),
            **({} if self.attention is None else {"attention": self.attention.to_dict()}),
            "dimension": self.dimension if isinstance(self.head, nn.Linear) else None,
            **({} if self.size_feature is None else {"size_feature": True}),
            "space": self.space.to_dict(),
            "freeze": self.frozen_upto,
            "frozen_batch_norm": self.frozen_batch_norm,
        }

    def fingerprint(self) -> str:
        """A sha256, in hex, of what decides the embeddings: architecture and weights, not the card or frozen stages."""
        architecture = self.architecture()
        del architecture["freeze"], architecture["frozen_batch_norm"], architecture["backbone"]["pretrained"]
        return hash_tensors(self.state_dict(), architecture)

    def save(self, path: str | Path) -> None:
        """Write the model and its card as one safetensors file, whole or not at all; nothing is pickled."""
        try:
            card = json.dumps(self.card.to_dict(), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"The model's card must contain only plain JSON values ({error}).") from error
        architecture = json.dumps(self.architecture())
        metadata = {"format": _FORMAT, "version": str(_VERSION), "architecture": architecture, "card": card}
        write_tensors(path, self.state_dict(), metadata)

    @classmethod
    def load(cls, path: str | Path) -> Embedder:
        """Read a model that `save` wrote; it comes in eval mode, on the CPU.

        Raises:
            CheckpointError: the file is missing, damaged, something else, or of another version.
        """
        from nearkin.models.build import assemble

        path = Path(path)
        if not path.is_file():
            raise CheckpointError(f"There is no model file {path}: check the path.")
        try:
            metadata, weights = read_tensors(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is not a model file of nearkin, or it is damaged ({error}).") from error
        if metadata.get("format") != _FORMAT:
            raise CheckpointError(f"{path} is a safetensors file, but not a model that nearkin saved.")
        check_version(path, metadata.get("version", ""), _VERSION, "train the model again")
        try:
            architecture, card = json.loads(metadata["architecture"]), Card.from_dict(json.loads(metadata["card"]))
            _check_sizes({key: value for key, value in architecture.items() if key != "input"})  # it has its own bounds
            embedder = assemble(architecture, pretrained=False)
            embedder.load_state_dict(weights)
        except NearkinError as error:
            raise CheckpointError(f"{path} could not be loaded: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(f"{path} is damaged: its tensors do not fit its architecture ({reason}).") from error
        embedder.card = card
        embedder.eval()
        return embedder


_FORMAT = "nearkin.embedder"
_VERSION = 1
_MOST = 65536


def _check_sizes(architecture: Any, name: str = "architecture") -> None:
    """Refuse a description of a model with a number that would take all memory, or all time, to build."""
    if isinstance(architecture, dict):
        for key, value in architecture.items():
            _check_sizes(value, key)
    elif isinstance(architecture, list):
        for value in architecture:
            _check_sizes(value, name)
    elif isinstance(architecture, int) and abs(architecture) > _MOST:
        raise ModelError(f"its {name} is {architecture}, beyond {_MOST}: the file is damaged, get it again.")


def hash_tensors(tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> str:
    """A sha256, in hex, over named tensors (names, types, shapes and values) and JSON-safe facts."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors and texts as one safetensors file, whole or not at all."""
    # Contiguous copies: safetensors keeps neither shared storage nor memory formats.
    copies = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    with replacing(path) as temporary:
        save_file(copies, temporary, metadata)


def read_tensors(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The texts and the tensors of a safetensors file.

    Raises:
        SafetensorError, OSError: the file is missing, damaged or something else.
    """
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def check_version(path: str | Path, version: str, ours: int, otherwise: str) -> None:
    """Refuse a file whose version is not ours: a newer one asks for an upgrade, any other for what is said."""
    if version != str(ours):
        newer = version.isdecimal() and int(version) > ours
        raise CheckpointError(
            f"{path} has the format version '{version}', but this nearkin reads version {ours}: "
            f"{'upgrade to a newer nearkin' if newer else otherwise}."
        )


_BATCH = 64


@dataclass(frozen=True, eq=False)
class PixelReader:
    """Gives items of a data set as a model takes them, before they are normalised.

    Args:
        embedder: the model.
        dataset: the images.
    """

    embedder: Embedder
    dataset: Dataset

    def __call__(self, rows: Sequence[int] | np.ndarray) -> Tensor:
        """Pixels float32 (r, C, H, W) in [0, 1] of the items `rows` (r,)."""
        samples = open_items(self.dataset.select(np.asarray(rows)), self.embedder.spec)
        batches = [batch if batch.is_floating_point() else batch / 255.0 for batch in samples.batches(_BATCH, 1)]
        return torch.cat([batch.float() for batch in batches])[:, : self.embedder.spec.channels]
