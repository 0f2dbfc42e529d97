"""How an objective is minimised: the loop, its batches, its checkpoints, and the run they are kept in."""

from nearkin.training.fit import TrainingResult, train
from nearkin.training.loop import Loop, LoopState
from nearkin.training.run import Run

__all__ = ["Loop", "LoopState", "Run", "TrainingResult", "train"]
