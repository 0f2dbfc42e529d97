"""What a gallery learns from itself, one item left out at a time: how sure, known or not, the same or not."""

from nearkin.gallery.calibration.calibration import Calibration, Calibrator, fit_calibration
from nearkin.gallery.calibration.identification import class_sizes
from nearkin.gallery.calibration.pairs import Ruling
from nearkin.gallery.calibration.training_items import is_training_data, note_training_items, training_classes

__all__ = [
    "Calibration",
    "Calibrator",
    "Ruling",
    "class_sizes",
    "fit_calibration",
    "is_training_data",
    "note_training_items",
    "training_classes",
]
