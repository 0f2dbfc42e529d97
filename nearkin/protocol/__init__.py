"""Recipes against each other: folds, seeds, the book that keeps what was measured, and one table."""

from nearkin.protocol.benchmark import Benchmark, run_benchmark
from nearkin.protocol.book import Book, Contents
from nearkin.protocol.candidates import Candidate, Cell
from nearkin.protocol.summary import Summary

__all__ = ["Benchmark", "Book", "Candidate", "Cell", "Contents", "Summary", "run_benchmark"]
