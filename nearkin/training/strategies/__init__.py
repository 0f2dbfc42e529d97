"""What each batch is compared with as training goes on: itself, a memory of earlier batches, series of proxies, its own
support items, or itself as an attack has perturbed it."""

from nearkin.training.strategies.adversarial import Adversarial
from nearkin.training.strategies.base import CrossBatchMemory, Episodic, Schedule, make_schedule
from nearkin.training.strategies.chance_constrained import ChanceConstrained

__all__ = ["Adversarial", "ChanceConstrained", "CrossBatchMemory", "Episodic", "Schedule", "make_schedule"]
