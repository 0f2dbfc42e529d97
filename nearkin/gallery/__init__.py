"""Enrolled items that answer: what is this, and what is it like?"""

from nearkin.gallery.calibration import Calibration
from nearkin.gallery.gallery import Gallery
from nearkin.gallery.values import (
    Candidate,
    Duplicates,
    Item,
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
    "Candidate",
    "Duplicates",
    "Gallery",
    "Item",
    "MapPoint",
    "Match",
    "Neighbour",
    "Settings",
    "Stats",
    "Suspect",
    "Verification",
]
