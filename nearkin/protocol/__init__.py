"""Recipes against each other: folds, seeds, the book that keeps what was measured, and one table."""

from nearkin.protocol.benchmark import Benchmark, run_benchmark
from nearkin.protocol.book import Book, Contents
from nearkin.protocol.candidates import Candidate, Cell
from nearkin.protocol.search_space import parse_space
from nearkin.protocol.summary import Summary
from nearkin.protocol.tune import TrialBook, TuningResult, TuningTrial, run_tuning

__all__ = [
    "Benchmark",
    "Book",
    "Candidate",
    "Cell",
    "Contents",
    "Summary",
    "TrialBook",
    "TuningResult",
    "TuningTrial",
    "parse_space",
    "run_benchmark",
    "run_tuning",
]
