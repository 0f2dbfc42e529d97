"""What a gallery learns from itself, one item left out at a time: how sure, known or not, the same or not."""

from nearkin.gallery.calibration.calibration import Calibration
from nearkin.gallery.calibration.fit import fit_calibration
from nearkin.gallery.calibration.left_out import class_sizes
from nearkin.gallery.calibration.pair_rule import Ruling
from nearkin.gallery.calibration.verdicts import Verdict

__all__ = ["Calibration", "Ruling", "Verdict", "class_sizes", "fit_calibration"]
