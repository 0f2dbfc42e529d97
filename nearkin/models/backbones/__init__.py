"""Backbones: from an input to feature maps."""

from nearkin.models.backbones import (  # noqa: F401  (they register themselves)
    bn_inception,
    conv4,
    efficientnet,
    lenet,
    resnet,
    tdnn,
)
from nearkin.models.backbones.base import Backbone
from nearkin.models.backbones.registry import BackboneEntry, backbones, list_backbones, make_backbone

__all__ = ["Backbone", "BackboneEntry", "backbones", "list_backbones", "make_backbone"]
