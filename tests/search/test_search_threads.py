"""Searches beside and inside each other, what a search leaves behind, and the memory of the default metrics."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from nearkin.metrics import retrieval_metrics
from nearkin.search import exact, workers
from nearkin.search.brute_force import Order, search_candidates
from nearkin.spaces import Euclidean, Sphere


@pytest.fixture
def fresh_threads(monkeypatch):
    """Two threads that are started by the first search of the test."""
    monkeypatch.setattr(workers, "_pools", {})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    for pool in workers._pools.values():
        pool.shutdown()
    torch.set_num_threads(before)


class Watching:
    """A scorer that remembers how torch was set when it was asked."""

    def __init__(self):
        self.seen = set()

    def distance(self, x, y):
        self.seen.add((torch.is_grad_enabled(), torch.get_num_threads()))
        return torch.cdist(x, y)


@pytest.mark.usefixtures("fresh_threads")
def test_a_search_leaves_torch_as_it_was():
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    scorer, later = Watching(), []
    for k in (3, 100):
        assert not exact(x, k=k, space=scorer)[0].requires_grad
    retrieval_metrics(x, np.arange(300) % 7, space=scorer)
    assert scorer.seen == {(False, 1)}
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()
    for _ in range(3):
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    assert later == [2, 2, 2]


@pytest.mark.usefixtures("fresh_threads")
def test_every_worker_gets_its_turn_and_the_first_error_comes_out():
    numbers, both = [], threading.Barrier(2, timeout=30)

    def work(number):
        both.wait()  # they run at the same time
        numbers.append(number)
        raise KeyError(number)

    with pytest.raises(KeyError, match="0"):
        workers.run_workers(work, torch.device("cpu"))
    assert sorted(numbers) == [0, 1]


@pytest.mark.usefixtures("fresh_threads")
@pytest.mark.parametrize("k", [5, 80])
def test_searches_side_by_side_do_not_mix(k):
    sets = [torch.randn(1500, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    expected = [exact(x, k=k)[1] for x in sets]
    found = {}

    def search(number):
        found[number] = exact(sets[number], k=k)[1]

    threads = [threading.Thread(target=search, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(found) == [0, 1, 2, 3]
    assert all(torch.equal(found[number], expected[number]) for number in range(4))


@pytest.mark.usefixtures("fresh_threads")
def test_a_search_inside_a_search_ends():
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    inner, done = [], threading.Event()

    def consume(rows, keys):
        inner.append(exact(x[:50], k=3, space=Euclidean())[1])

    def search():
        search_candidates(Order(x, x, Sphere()), np.arange(200), np.full(200, 4), np.arange(200), consume, 2**26)
        done.set()

    threading.Thread(target=search, daemon=True).start()
    assert done.wait(60)
    assert all(torch.equal(found, inner[0]) for found in inner)


_MEASURE = """
import os, pathlib, sys, threading, resource, torch
from nearkin.metrics import retrieval_metrics
from nearkin.search import exact

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

# A process for each, which imports nothing again.
for case in sys.argv[1:]:
    what, classes = case.split()
    child = os.fork()
    if not child:
        break
    os.waitpid(child, 0)
else:
    sys.exit()
torch.set_num_threads(2)
generator = torch.Generator().manual_seed(0)
classes = int(classes)
centres = torch.randn(classes, 64, generator=generator)
labels = torch.arange(8_000) % classes
x = centres[labels] + 1.2 * torch.randn(8_000, 64, generator=generator)
run = {"search": lambda: exact(x, k=10, memory_mb=64), "metrics": lambda: retrieval_metrics(x, labels, memory_mb=64)}
for warm in (lambda: exact(x[:1500], k=10), lambda: retrieval_metrics(x[:1500], labels[:1500] % 50)):
    warm()
before, peak, done = resident(), [0.0], threading.Event()

def watch():
    while not done.wait(0.003):
        peak[0] = max(peak[0], resident())

watcher = threading.Thread(target=watch)
watcher.start()
run[what]()
done.set()
watcher.join()
print(peak[0] - before, flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the memory in use")
def test_the_budget_of_memory_is_kept():
    """At 8,000 vectors of 64 numbers; 32 MB for results and the allocator's habits. All scores would take 244 MB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    cases = ["search 400", "metrics 3000", "metrics 400", "metrics 40"]
    command = [sys.executable, "-c", _MEASURE, *cases]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=environment)
    grown = dict(zip(cases, map(float, answer.stdout.split()), strict=True))
    assert max(grown.values()) < 64 + 32, grown
