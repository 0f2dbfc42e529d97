"""Recipes against each other: folds, seeds, the book that keeps what was measured, and one table."""

from nearkin.protocol.book import Book
from nearkin.protocol.candidates import Candidate
from nearkin.protocol.cells import Cell
from nearkin.protocol.contents import Contents
from nearkin.protocol.run import Benchmark, run_benchmark
from nearkin.protocol.summary import Summary

__all__ = ["Benchmark", "Book", "Candidate", "Cell", "Contents", "Summary", "run_benchmark"]
