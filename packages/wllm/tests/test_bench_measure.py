"""What `wllm bench` measures, on an engine whose time is known: the figures are exactly what that engine takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from wllm.bench.floor import Floor
from wllm.bench.lengths import PromptMaker, chat_like
from wllm.bench.measure import DecodeStep, FirstToken, Measurement, Mix, Prefill, prompts_for

PREFILL_S, STEP_S = 0.001, 0.010  # of a prompt token; of a decode step, whatever its batch


@dataclass
class KnownEngine:
    """Computes all prompts, then decodes all requests together."""

    asked: list[tuple[list[list[int]], list[int]]] = field(default_factory=list)

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        self.asked.append(([list(prompt) for prompt in prompts], list(output_lengths)))
        return PREFILL_S * sum(map(len, prompts)) + STEP_S * (max(output_lengths) - 1)


MIX = Mix(tuple(chat_like(20, seed=1, longest=50)), seed=1)
ALL: list[Measurement] = [DecodeStep(4, 16, 32), FirstToken(100), Prefill(2, 50), MIX]


def measured(measurement: Measurement, engine: KnownEngine | None = None) -> float:
    return measurement.sample(engine or KnownEngine(), prompts_for(measurement.what, 1000, 0, 0, 0))


def test_a_decode_step_has_no_prefill_in_it() -> None:
    assert measured(DecodeStep(batch=4, prompt_len=16, output_len=32)) == pytest.approx(1e3 * STEP_S)


def test_first_token() -> None:
    assert measured(FirstToken(100)) == pytest.approx(1e3 * 100 * PREFILL_S)


def test_prefill() -> None:
    assert measured(Prefill(2, 50)) == pytest.approx(1 / PREFILL_S)


def test_the_mix_counts_output_tokens() -> None:
    seconds = PREFILL_S * sum(shape.prompt for shape in MIX.shapes) + STEP_S * (max(s.output for s in MIX.shapes) - 1)
    assert measured(MIX) == pytest.approx(sum(shape.output for shape in MIX.shapes) / seconds)


@pytest.mark.parametrize("measurement", ALL, ids=lambda one: type(one).__name__)
def test_every_engine_gets_the_same_prompts(measurement: Measurement) -> None:
    one, other = KnownEngine(), KnownEngine()
    measured(measurement, one)
    measured(measurement, other)
    assert one.asked == other.asked


@pytest.mark.parametrize("measurement", ALL, ids=lambda one: type(one).__name__)
def test_no_prompt_comes_twice(measurement: Measurement) -> None:
    """Else a prefix cache would answer for the engine."""
    engine = KnownEngine()
    measurement.warm_up(engine, prompts_for(measurement.what, 1000, 0, 0, -1))
    for round_number in range(2):
        for sample in range(3):
            measurement.sample(engine, prompts_for(measurement.what, 1000, 0, round_number, sample))
    # Blocks are cached, not prompts: the first block's tokens must differ.
    starts = [tuple(prompt[:16]) for prompts, _ in engine.asked for prompt in prompts if len(prompt) >= 16]
    assert len(starts) >= 7
    assert len(set(starts)) == len(starts)


def test_names_tell_measurements_apart() -> None:
    variants: list[Measurement] = [
        *(DecodeStep(*numbers) for numbers in ((1, 16, 32), (2, 16, 32), (1, 17, 32), (1, 16, 33))),
        *(FirstToken(length) for length in (1, 2)),
        *(Prefill(*numbers) for numbers in ((1, 2), (2, 1))),
        *(Mix(tuple(chat_like(count, seed)), seed) for count, seed in ((8, 0), (9, 0), (8, 1))),
    ]
    assert len({one.what for one in variants}) == len(variants)


def test_ids_are_of_the_vocabulary() -> None:
    assert set(PromptMaker(vocab_size=7, seed=0).one(500)) == {3, 4, 5, 6}
    assert set(PromptMaker(vocab_size=203, seed=0).one(2000)) == set(range(100, 203))


def test_chat_like_lengths_have_the_means_that_they_claim() -> None:
    shapes = chat_like(50_000, seed=0)
    assert statistics.fmean(shape.prompt for shape in shapes) == pytest.approx(161, rel=0.03)
    assert statistics.fmean(shape.output for shape in shapes) == pytest.approx(338, rel=0.03)
    assert {min(s.prompt for s in shapes), max(s.output for s in shapes)} == {4, 1024}


def test_the_floor_of_a_decode_step() -> None:
    floor = Floor(weight_bytes=1000, kv_bytes_per_token=2, bandwidth=1e6)
    # Half-way through 32 tokens after 16 of the prompt the context is 32 tokens.
    assert floor.under(DecodeStep(batch=4, prompt_len=16, output_len=32)) == pytest.approx(
        1e3 * (1000 + 4 * 32 * 2) / 1e6
    )
    assert floor.under(FirstToken(10)) is None
