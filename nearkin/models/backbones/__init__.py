"""Backbones: from an input to feature maps."""

from nearkin.models.backbones import (  # noqa: F401  (they register themselves)
    bn_inception,
    efficientnet,
    resnet,
    small,
)
from nearkin.models.backbones.base import Backbone, BackboneEntry, backbones, list_backbones, make_backbone

__all__ = ["Backbone", "BackboneEntry", "backbones", "list_backbones", "make_backbone"]
