"""Enrolled items that answer: what is this, and what is it like?"""

from nearkin._moved import renamed
from nearkin.gallery.bulk_import import Imported
from nearkin.gallery.calibration import Calibration
from nearkin.gallery.gallery import Gallery
from nearkin.gallery.layout import Layout
from nearkin.gallery.precision import PrecisionLoss, precision_loss
from nearkin.gallery.values import (
    Duplicates,
    Forecast,
    Item,
    LikelyClass,
    MapPoint,
    Match,
    Neighbour,
    Settings,
    Stats,
    Suspect,
    Verification,
)

__all__ = [
    "Calibration",
    "Duplicates",
    "Forecast",
    "Gallery",
    "Imported",
    "Item",
    "Layout",
    "LikelyClass",
    "MapPoint",
    "Match",
    "Neighbour",
    "PrecisionLoss",
    "Settings",
    "Stats",
    "Suspect",
    "Verification",
    "precision_loss",
]


__getattr__ = renamed(__name__, Candidate="LikelyClass")
