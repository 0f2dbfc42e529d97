"""What each batch is compared with as training goes on: itself, a memory of earlier batches, series of proxies, its own
support items, or itself as an attack has perturbed it."""

from nearkin.training.schedules.adversarial import Adversarial
from nearkin.training.schedules.base import Schedule
from nearkin.training.schedules.chance_constrained import ChanceConstrained
from nearkin.training.schedules.episodic import Episodic
from nearkin.training.schedules.make import make_schedule
from nearkin.training.schedules.memory import CrossBatchMemory

__all__ = ["Adversarial", "ChanceConstrained", "CrossBatchMemory", "Episodic", "Schedule", "make_schedule"]
