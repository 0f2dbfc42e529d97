"""Threads of the search: what they must leave as they found it."""

import multiprocessing as mp
import threading

import pytest
import torch

from nearkin.search import exact
from nearkin.search.workers import Queue, run_workers, worker_count

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_workers_compute_alone_and_leave_the_setting_alone():
    inside, born_later = [], []

    def work(number):
        inside.append((number, torch.get_num_threads(), torch.is_grad_enabled()))

    run_workers(work, CPU)
    assert sorted(inside) == [(0, 1, False), (1, 1, False)]
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()
    later = threading.Thread(target=lambda: born_later.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert born_later == [2]


def test_an_accelerator_has_one_worker():
    assert worker_count(torch.device("meta")) == 1
    assert worker_count(CPU) == torch.get_num_threads()


@pytest.mark.usefixtures("two_threads")
def test_every_item_goes_to_one_worker():
    items, seen, lock = Queue(range(1000)), [], threading.Lock()

    def work(_):
        for item in items:
            with lock:
                seen.append(item)

    run_workers(work, CPU)
    assert sorted(seen) == list(range(1000))


@pytest.mark.usefixtures("two_threads")
def test_one_thread_and_two_give_the_same():
    x = torch.randn(2500, 20, generator=torch.Generator().manual_seed(0))
    two = exact(x, k=5), exact(x, k=60)
    torch.set_num_threads(1)
    one = exact(x, k=5), exact(x, k=60)
    for a, b in zip(two, one, strict=True):
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


def _in_a_child(queue):
    queue.put(exact(torch.eye(6), k=2)[1].tolist())


@pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.usefixtures("two_threads")
def test_a_forked_child_searches_too():
    exact(torch.eye(6), k=2)  # the parent's threads are running
    context = mp.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60)[0] == [1, 2]
    finally:
        child.join(timeout=10)
        child.kill()
