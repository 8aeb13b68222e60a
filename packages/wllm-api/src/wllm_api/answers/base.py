"""What chat and plain completions have in common: the envelope, the collecting, the stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import ClassVar

from wllm_api.answers.timings import timings
from wllm_api.answers.usage import usage
from wllm_api.generation import Generation
from wllm_api.schemas.sampling import SamplingFields
from wllm_api.sse import DONE, event
from wllm_api.text import TextDelta
from wllm_api.version import package_version
from wllm_sched.messages import FinishReason
from wllm_sched.plan import TokenLogprobs

FINGERPRINT = f"wllm-{package_version()}"


@dataclass(slots=True)
class Gained:
    """Text and tokens of one choice: of one delta, or of all of them.

    `token_ids` are all tokens; `logprobs` and `offsets` leave out a hidden stop token, whose text is not shown.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    num_visible: int = 0
    finish_reason: FinishReason | None = None

    def add(self, delta: TextDelta) -> None:
        """Append what a delta brought."""
        visible = len(delta.token_ids) - delta.num_hidden
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs[:visible]
        self.offsets += delta.text_offsets[:visible]
        self.num_visible = len(self.token_ids) - delta.num_hidden
        self.finish_reason = delta.finish_reason


class Answer:
    """One request's answer; subclasses say what a choice looks like."""

    object_name: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(self, fields: SamplingFields, generation: Generation, *, answer_id: str, model_name: str) -> None:
        self.fields = fields
        self.generation = generation
        self._head: dict[str, object] = {"id": answer_id, "created": int(time.time()), "model": model_name}
        self._begun: set[int] = set()

    def read(self, number: int, gained: Gained) -> None:
        """Take in what a choice gained, as it comes: a long answer must not be read all at once at its end."""

    def whole_choice(self, number: int, gained: Gained) -> dict[str, object]:
        """The whole choice."""
        raise NotImplementedError

    def chunk_choices(self, number: int, gained: Gained, *, first: bool) -> Iterator[dict[str, object]]:
        """The choice entries of the chunks that show what was gained; `first` for the first of this choice."""
        raise NotImplementedError

    def chosen(self, choices: list[Gained]) -> list[Gained]:
        """Those of the generated choices that a whole answer shows, in their order."""
        return choices

    def usage(self) -> dict[str, object]:
        """Token counts, as of now."""
        return usage(self.generation)

    def extras(self) -> dict[str, object]:
        """More fields of a whole answer."""
        return {}

    async def whole(self) -> dict[str, object]:
        """The answer as one object; raises `HttpError`."""
        choices: dict[int, Gained] = {}
        async with aclosing(self.generation.deltas()) as deltas:
            async for number, delta in deltas:
                self._read(number, delta)
                choices.setdefault(number, Gained()).add(delta)
        shown = self.chosen([choices[number] for number in sorted(choices)])
        return {
            "object": self.object_name,
            **self._head,
            "choices": [self.whole_choice(number, gained) for number, gained in enumerate(shown)],
            "usage": self.usage(),
            "system_fingerprint": FINGERPRINT,
            **({"timings": timings(self.generation)} if self.fields.timings_per_token else {}),
            **self.extras(),
        }

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events; raises `HttpError`."""
        options = self.fields.stream_options
        async with aclosing(self.generation.deltas()) as deltas:
            async for number, delta in deltas:
                gained = self._read(number, delta)
                first = number not in self._begun
                self._begun.add(number)
                for choice in self.chunk_choices(number, gained, first=first):
                    chunk = self._chunk([choice])
                    if options.continuous_usage_stats:
                        chunk["usage"] = self.usage()
                    elif options.include_usage:
                        chunk["usage"] = None
                    if self.fields.timings_per_token:
                        chunk["timings"] = timings(self.generation)
                    yield event(chunk)
        if options.include_usage:
            yield event({**self._chunk([]), "usage": self.usage()})
        yield DONE

    def _read(self, number: int, delta: TextDelta) -> Gained:
        gained = Gained()
        gained.add(delta)
        self.read(number, gained)
        return gained

    def _chunk(self, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "object": self.chunk_name,
            **self._head,
            "choices": choices,
            "system_fingerprint": FINGERPRINT,
        }
