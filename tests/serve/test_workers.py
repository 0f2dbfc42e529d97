"""Batches hold what came together; nothing is lost, mixed up or done for nobody."""

from __future__ import annotations

import asyncio
import threading

import pytest

from nearkin.serve.problems import Problem
from nearkin.serve.workers import Batcher


def _batcher(run, **options) -> Batcher:
    batcher = Batcher(run, **options)
    batcher.start()
    return batcher


def test_every_item_gets_its_own_answer_and_batches_fill_up_while_one_runs():
    sizes = []
    gate = threading.Event()

    def run(items):
        gate.wait(5)
        return [10 * item for item in items]

    async def main():
        batcher = _batcher(run, prepare=lambda item: item + 1, threads=3, max_batch=8, observe=sizes.append)
        tasks = [asyncio.create_task(batcher.submit(number)) for number in range(33)]
        while batcher._preparing or len(batcher._ready) < 25:
            await asyncio.sleep(0.001)
        gate.set()
        found = await asyncio.gather(*tasks)
        batcher.close(5)
        return found

    assert asyncio.run(main()) == [10 * (number + 1) for number in range(33)]
    assert sum(sizes) == 33
    assert max(sizes) == 8
    assert len(sizes) <= 6  # the first may be of one item, the others are full


def test_a_lone_item_does_not_wait_for_company():
    async def main():
        batcher = _batcher(lambda items: items, wait=30.0)
        answer = await asyncio.wait_for(batcher.submit("alone"), 5)
        batcher.close(5)
        return answer

    assert asyncio.run(main()) == "alone"


def test_a_batch_waits_for_what_is_being_prepared():
    sizes = []
    both = threading.Barrier(2)

    def prepare(item):
        both.wait(5)
        threading.Event().wait(0.05 * item)
        return item

    async def main():
        batcher = _batcher(lambda items: items, prepare=prepare, threads=2, wait=5.0, observe=sizes.append)
        found = await asyncio.gather(batcher.submit(0), batcher.submit(1))
        batcher.close(5)
        return found

    assert asyncio.run(main()) == [0, 1]
    assert sizes == [2]


def test_one_bad_item_spoils_nothing_for_the_others():
    def prepare(item):
        if item == 3:
            raise ValueError("cannot be decoded")
        return item

    def run(items):
        if 5 in items:
            raise KeyError("cannot be run")
        return items

    async def main():
        batcher = _batcher(run, prepare=prepare, wait=0.2)
        found = await asyncio.gather(*(batcher.submit(number) for number in range(8)), return_exceptions=True)
        batcher.close(5)
        return found

    found = asyncio.run(main())
    assert [number for number in range(8) if found[number] == number] == [0, 1, 2, 4, 6, 7]
    assert isinstance(found[3], ValueError)
    assert isinstance(found[5], KeyError)


def test_what_nobody_waits_for_any_more_is_not_run():
    ran = []
    gate, begun = threading.Event(), threading.Event()

    def run(items):
        begun.set()
        gate.wait(5)
        ran.extend(items)
        return items

    async def main():
        batcher = _batcher(run, max_batch=1)
        first = asyncio.create_task(batcher.submit("first"))
        await asyncio.to_thread(begun.wait, 5)
        given_up = asyncio.create_task(batcher.submit("given up"))
        await asyncio.sleep(0)
        last = asyncio.create_task(batcher.submit("last"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, last)
        batcher.close(5)

    asyncio.run(main())
    assert ran == ["first", "last"]


def test_the_queue_is_bounded_and_the_refusal_says_when_to_come_back():
    gate = threading.Event()

    async def main():
        batcher = _batcher(lambda items: gate.wait(5) and items, capacity=3)
        tasks = [asyncio.create_task(batcher.submit(number)) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as refused:
            await batcher.submit(3)
        gate.set()
        found = await asyncio.gather(*tasks)
        batcher.close(5)
        return refused.value, found

    problem, found = asyncio.run(main())
    assert (problem.status, problem.headers["retry-after"]) == (503, "1")
    assert found == [0, 1, 2]


def test_closing_finishes_what_was_accepted_and_takes_nothing_more():
    async def main():
        batcher = _batcher(lambda items: items, prepare=lambda item: item, threads=2, max_batch=4)
        tasks = [asyncio.create_task(batcher.submit(number)) for number in range(50)]
        await asyncio.sleep(0)
        await asyncio.to_thread(batcher.close, 5)
        with pytest.raises(Problem, match="stopping"):
            await batcher.submit(0)
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == list(range(50))
