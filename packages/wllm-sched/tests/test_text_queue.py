"""Which texts come next: every text once, within the limits, and no request waits for another's thousands."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from wllm_sched import Abort, Pool, PooledText, RequestRefused, TextQueue
from wllm_sched.refusal import refuse_impossible_texts


def request(request_id: int, *lengths: int) -> Pool:
    return Pool(request_id, [PooledText([7] * length) for length in lengths])


def names(queue: TextQueue) -> list[tuple[int, int]]:
    return [(queued.request.request_id, queued.index) for queued in queue.take()]


def test_a_request_of_one_text_is_in_the_next_step() -> None:
    queue = TextQueue(max_texts=4, max_tokens=100)
    queue.push(request(0, *[5] * 1000))
    names(queue)
    queue.push(request(1, 5))
    assert (1, 0) in names(queue)


def test_requests_take_turns() -> None:
    queue = TextQueue(max_texts=6, max_tokens=1000)
    for request_id in range(3):
        queue.push(request(request_id, *[5] * 10))
    assert Counter(request_id for request_id, _ in names(queue)) == {0: 2, 1: 2, 2: 2}


def test_a_text_above_the_budget_goes_alone() -> None:
    queue = TextQueue(max_texts=4, max_tokens=10)
    queue.push(request(0, 25, 6))
    assert [names(queue), names(queue), names(queue)] == [[(0, 1)], [(0, 0)], []]


def test_every_text_comes_once_within_the_limits() -> None:
    rng = random.Random(0)
    for _ in range(200):
        max_texts, max_tokens = rng.randint(1, 6), rng.randint(5, 40)
        queue = TextQueue(max_texts, max_tokens)
        requests = [request(n, *[rng.randint(1, 50) for _ in range(rng.randint(0, 9))]) for n in range(4)]
        wanted = {(one.request_id, index) for one in requests for index in range(len(one.texts))}
        seen: list[tuple[int, int]] = []
        dropped: list[tuple[int, int]] = []
        while requests or queue.has_work:
            if requests and rng.random() < 0.5:
                queue.push(requests.pop())
            if rng.random() < 0.1:
                queue.abort(Abort(rng.randrange(5), rng.choice([None, 0, 3])))
            aborted = queue.take_aborted()
            assert all(event.finish_reason == "abort" for event in aborted)
            dropped += [(event.request_id, event.index) for event in aborted]
            step = queue.take()
            assert len(step) <= max_texts
            assert len(step) <= 1 or sum(queued.length for queued in step) <= max_tokens
            seen += [(queued.request.request_id, queued.index) for queued in step]
        assert queue.num_waiting == 0
        assert sorted(seen + dropped) == sorted(wanted)


def test_an_aborted_request_leaves_its_turn() -> None:
    queue = TextQueue(max_texts=2, max_tokens=100)
    queue.push(request(0, 5, 5, 5))
    queue.push(request(1, 5))
    assert names(queue) == [(0, 0), (1, 0)]
    queue.abort(Abort(0))
    assert {event.index for event in queue.take_aborted()} == {1, 2}
    assert not queue.has_work
    assert names(queue) == []


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (request(0, 4, 0), "empty"),
        (request(0, 4, 9), "maximum context length is 8 tokens. However, a text has 9"),
        (Pool(0, [PooledText([3, 10])]), "10, which is not a token id"),
        (Pool(0, [PooledText([3, -1])]), "-1, which is not a token id"),
        (Pool(0, [PooledText([3])], dimensions=5), "dimensions is 5"),
    ],
)
def test_impossible_texts_are_refused(pool: Pool, words: str) -> None:
    with pytest.raises(RequestRefused, match=words):
        refuse_impossible_texts(pool, vocab_size=10, max_model_len=8, dimensions=(4, 16))


def test_possible_texts_are_not() -> None:
    pool = Pool(0, [PooledText([3] * 8)], dimensions=4)
    refuse_impossible_texts(pool, vocab_size=10, max_model_len=8, dimensions=(4, 16))
