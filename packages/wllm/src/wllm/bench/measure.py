"""What is measured, the same for every engine: a class makes prompts, asks for answers and makes a figure of seconds.

Works on anything with `generate(prompts, output_lengths) -> seconds`. Prompts are random and never come twice, so a
prefix cache helps nobody, unless a row says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from wllm.bench.errors import BenchError
from wllm.bench.lengths import PromptMaker, Shape
from wllm.bench.results import Better
from wllm_runtime.progress import progress_bar

_WARM_OUTPUT = 8

Engine = TypeVar("Engine")
Engine_contra = TypeVar("Engine_contra", contravariant=True)


class Generates(Protocol):
    """A loaded engine, in this process or another."""

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        """Answer all prompts, given at once, with exactly so many tokens each; the seconds that took."""


class Sampled(Protocol[Engine_contra]):
    """What can be measured again and again, of engines that it knows how to use."""

    @property
    def what(self) -> str:
        """Names the row."""

    def warm_up(self, engine: Engine_contra, prompts: PromptMaker, /) -> None:
        """Make the engine ready for such requests."""

    def sample(self, engine: Engine_contra, prompts: PromptMaker, /) -> float:
        """Measure once."""


class Measurement(Protocol):
    """One row."""

    @property
    def what(self) -> str:
        """Names the row and everything that its figure depends on but the model and the engine."""

    @property
    def unit(self) -> str:
        """Of a sample."""

    @property
    def better(self) -> Better:
        """Whether lower or higher is better."""

    @property
    def context(self) -> int:
        """Tokens of its longest request, in and out."""

    def samples_in_a_round(self, repeats: int) -> int:
        """How often a comparison measures it in one round."""

    def warm_up(self, engine: Generates, prompts: PromptMaker) -> None:
        """Make the engine ready for such requests."""

    def sample(self, engine: Generates, prompts: PromptMaker) -> float:
        """Measure once."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Milliseconds of a step in which `batch` requests decode: what the tokens after the first take, a token."""

    batch: int
    prompt_len: int
    output_len: int
    unit: str = "ms"
    better: Better = "lower"

    @property
    def what(self) -> str:
        """As `Measurement` says."""
        return f"decode step, batch {self.batch} ({self.prompt_len} in, {self.output_len} out)"

    @property
    def context(self) -> int:
        """As `Measurement` says."""
        return self.prompt_len + self.output_len

    def samples_in_a_round(self, repeats: int) -> int:
        """As `Measurement` says."""
        return repeats

    def warm_up(self, engine: Generates, prompts: PromptMaker) -> None:
        """As `Measurement` says."""
        engine.generate(prompts.many(self.batch, self.prompt_len), [min(_WARM_OUTPUT, self.output_len)] * self.batch)

    def sample(self, engine: Generates, prompts: PromptMaker) -> float:
        """As `Measurement` says."""
        first = engine.generate(prompts.many(self.batch, self.prompt_len), [1] * self.batch)
        whole = engine.generate(prompts.many(self.batch, self.prompt_len), [self.output_len] * self.batch)
        return 1e3 * (whole - first) / (self.output_len - 1)


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Milliseconds from a prompt to its first token, with nothing else running."""

    prompt_len: int
    unit: str = "ms"
    better: Better = "lower"

    @property
    def what(self) -> str:
        """As `Measurement` says."""
        return f"first token of {self.prompt_len:,}"

    @property
    def context(self) -> int:
        """As `Measurement` says."""
        return self.prompt_len + 1

    def samples_in_a_round(self, repeats: int) -> int:
        """As `Measurement` says."""
        return repeats

    def warm_up(self, engine: Generates, prompts: PromptMaker) -> None:
        """As `Measurement` says."""
        self.sample(engine, prompts)

    def sample(self, engine: Generates, prompts: PromptMaker) -> float:
        """As `Measurement` says."""
        return 1e3 * engine.generate([prompts.one(self.prompt_len)], [1])


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompt tokens a second when `count` prompts come at once and want one token each."""

    count: int
    prompt_len: int
    unit: str = "tokens/s"
    better: Better = "higher"

    @property
    def what(self) -> str:
        """As `Measurement` says."""
        return f"prefill {self.count} x {self.prompt_len:,}"

    @property
    def context(self) -> int:
        """As `Measurement` says."""
        return self.prompt_len + 1

    def samples_in_a_round(self, repeats: int) -> int:
        """As `Measurement` says."""
        return repeats

    def warm_up(self, engine: Generates, prompts: PromptMaker) -> None:
        """As `Measurement` says."""
        self.sample(engine, prompts)

    def sample(self, engine: Generates, prompts: PromptMaker) -> float:
        """As `Measurement` says."""
        seconds = engine.generate(prompts.many(self.count, self.prompt_len), [1] * self.count)
        return self.count * self.prompt_len / seconds


@dataclass(frozen=True, slots=True)
class Mix:
    """Output tokens a second when many chat-like requests come at once."""

    shapes: tuple[Shape, ...]
    seed: int
    unit: str = "tokens/s"
    better: Better = "higher"

    @property
    def what(self) -> str:
        """As `Measurement` says."""
        longest = max(max(shape.prompt, shape.output) for shape in self.shapes)
        return f"output of {len(self.shapes)} chat-like requests (longest {longest:,}, seed {self.seed})"

    @property
    def num_output_tokens(self) -> int:
        """Of all requests."""
        return sum(shape.output for shape in self.shapes)

    @property
    def num_tokens(self) -> int:
        """Of all requests, in and out."""
        return sum(shape.prompt + shape.output for shape in self.shapes)

    @property
    def context(self) -> int:
        """As `Measurement` says."""
        return max(shape.prompt + max(shape.output, _WARM_OUTPUT) for shape in self.shapes)

    def samples_in_a_round(self, repeats: int) -> int:
        """As `Measurement` says: once, since it takes long and holds thousands of steps."""
        return 1

    def warm_up(self, engine: Generates, prompts: PromptMaker) -> None:
        """As `Measurement` says; the whole mix would take as long as a sample."""
        engine.generate([prompts.one(shape.prompt) for shape in self.shapes], [_WARM_OUTPUT] * len(self.shapes))

    def sample(self, engine: Generates, prompts: PromptMaker) -> float:
        """As `Measurement` says."""
        outputs = [shape.output for shape in self.shapes]
        return self.num_output_tokens / engine.generate([prompts.one(shape.prompt) for shape in self.shapes], outputs)


def check_context(measurements: Sequence[Measurement], max_model_len: int) -> None:
    """Raise `BenchError`, before anything is measured, for a row with requests that are too long for the model."""
    for one in measurements:
        if one.context > max_model_len:
            raise BenchError(
                f"the row {one.what!r} has requests of {one.context:,} tokens, and the context here is "
                f"{max_model_len:,}; ask for shorter ones (see --help), or raise --max-model-len if the model allows it"
            )


def take_samples(one: Sampled[Engine], engine: Engine, vocab_size: int, seed: int, repeats: int) -> tuple[float, ...]:
    """Warm up and measure `repeats` times; a terminal shows how far it is."""
    with progress_bar(one.what, total=1 + repeats, unit="run", leave=False) as bar:
        one.warm_up(engine, prompts_for(one.what, vocab_size, seed, 0, -1))
        bar.update()
        samples = []
        for number in range(repeats):
            samples.append(one.sample(engine, prompts_for(one.what, vocab_size, seed, 0, number)))
            bar.update()
    return tuple(samples)


def prompts_for(what: str, vocab_size: int, seed: int, round_number: int, sample: int) -> PromptMaker:
    """The prompts of one sample (-1: the warm-up): the same for every engine, and no two samples share any."""
    return PromptMaker(vocab_size, f"{seed}/{what}/{round_number}/{sample}")
