"""The random requests of the soak test: everything that a client may ask for, and what none may.

All from one generator of random numbers, so a seed repeats the load. Prompts are token ids where the model's size is
random, so that they work without a tokenizer of the model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
STOPS = ("e", "the", "ab", "\n\n", "zq")
# Forms of answers, each of which random weights can end.
FORMS: tuple[dict[str, Any], ...] = (
    {"choice": ["yes", "no", "perhaps"]},
    {"regex": "[a-f]{3,12}-[0-9]+"},
    {
        "json": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    },
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `probe`: requests with the same one must get the same tokens. `status` is what it must get.

    `leave_after_events`, `leave_after_s`: when the client hangs up; None: it stays.
    """

    kind: str
    body: dict[str, Any]
    path: str = COMPLETIONS
    status: int = 200
    probe: str | None = None
    leave_after_events: int | None = None
    leave_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server says of its model, and how long answers get."""

    vocab_size: int
    max_model_len: int
    text_ids: tuple[int, ...]  # ids whose text is ASCII; empty without a tokenizer
    longest_answer: int


class Mix:
    """Draws requests; `kinds` weighs them."""

    def __init__(self, limits: Limits, seed: int) -> None:
        self._limits = limits
        self._numbers = random.Random(seed)
        fixed = random.Random(f"fixed {seed}")
        self._prefixes = [self._ids(fixed, length) for length in (20, 64, 150) for _ in range(2)]
        self._probes = [self._ids(fixed, fixed.randint(1, 60)) for _ in range(8)]
        self.kinds: dict[str, tuple[float, Callable[[], Request]]] = {
            "plain": (20, self._plain),
            "prefix": (12, self._prefix),
            "long": (4, self._long),
            "several": (8, self._several),
            "seeded": (8, self._seeded),
            "greedy": (10, self._greedy),
            "logprobs": (6, self._logprobs),
            "penalties": (6, self._penalties),
            "bias": (6, self._bias),
            "left": (10, self._left),
            "left at once": (4, self._left_at_once),
            "bad": (6, self._bad),
        }
        if limits.text_ids:
            self.kinds |= {"stop": (6, self._stop), "chat": (6, self._chat), "structured": (8, self._structured)}

    def draw(self) -> Request:
        """The next request."""
        makers = [make for _, make in self.kinds.values()]
        return self._numbers.choices(makers, [weight for weight, _ in self.kinds.values()])[0]()

    def burst(self, count: int) -> list[Request]:
        """Requests that arrive together: every second time such that outgrow the KV blocks, which preempts some."""
        grow = self._numbers.random() < 0.5
        return [self._growing() if grow else self.draw() for _ in range(count)]

    def _ids(self, numbers: random.Random, length: int) -> list[int]:
        return numbers.choices(range(3, self._limits.vocab_size), k=length)

    def _length(self, median: float, longest: int) -> int:
        return min(max(round(math.exp(self._numbers.gauss(math.log(median), 1.0))), 1), longest)

    def _base(self, prompt: list[int] | None = None, **fields: Any) -> dict[str, Any]:
        limits, numbers = self._limits, self._numbers
        if prompt is None:
            prompt = self._ids(numbers, self._length(30, limits.max_model_len // 2))
        room = min(limits.max_model_len - len(prompt), limits.longest_answer)
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": self._length(20, room), "return_token_ids": True}
        body["temperature"] = numbers.choice((0, 0.7, 1.0, 1.5))
        if numbers.random() < 0.5:
            body |= {"ignore_eos": True}
        if numbers.random() < 0.3:
            body |= {"top_p": 0.9, "top_k": numbers.choice((1, 20, 100))}
        if numbers.random() < 0.6:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | fields

    def _plain(self) -> Request:
        return Request("plain", self._base())

    def _prefix(self) -> Request:
        prefix = self._numbers.choice(self._prefixes)
        longest = self._limits.max_model_len // 2
        return Request("prefix", self._base([*prefix[:longest], *self._ids(self._numbers, 5)]))

    def _long(self) -> Request:
        answer = self._numbers.choice((1, 4, 16))
        prompt = self._ids(self._numbers, self._limits.max_model_len - answer - self._numbers.choice((0, 0, 7)))
        return Request("long", self._base(prompt, max_tokens=answer))

    def _growing(self) -> Request:
        prompt = self._ids(self._numbers, 8)
        return Request("growing", self._base(prompt, max_tokens=self._limits.longest_answer, ignore_eos=True))

    def _several(self) -> Request:
        body = self._base(n=self._numbers.randint(2, 4), temperature=1.0)
        if self._numbers.random() < 0.3:
            body["logprobs"] = 1
        return Request("several", body)

    def _seeded(self) -> Request:
        which = self._numbers.randrange(len(self._probes))
        several = which % 4 == 3
        body = self._base(self._probes[which], seed=which * 77 - 3, temperature=1.0, max_tokens=24, ignore_eos=True)
        body |= {"top_p": 1.0, "top_k": 0, "n": 2 if several else 1}
        return Request("seeded", body, probe=f"seeded {which}")

    def _greedy(self) -> Request:
        which = self._numbers.randrange(len(self._probes))
        body = self._base(self._probes[which], temperature=0, max_tokens=24, ignore_eos=True)
        # With ids, since two of them may have the same text.
        body |= {"logprobs": 2, "return_tokens_as_token_ids": True}
        return Request("greedy", body, probe=f"greedy {which}")

    def _logprobs(self) -> Request:
        body = self._base(logprobs=self._numbers.choice((0, 1, 5, 20)))
        if not body.get("stream"):
            body["prompt_logprobs"] = self._numbers.choice((0, 3))
        return Request("logprobs", body)

    def _penalties(self) -> Request:
        numbers = self._numbers
        return Request(
            "penalties",
            self._base(
                presence_penalty=numbers.choice((0, 1.5)),
                frequency_penalty=numbers.choice((-1, 0.5)),
                repetition_penalty=numbers.choice((1.0, 1.3)),
                min_p=numbers.choice((0, 0.05)),
            ),
        )

    def _bias(self) -> Request:
        numbers = self._numbers
        ids = numbers.sample(range(3, self._limits.vocab_size), 12)
        fields: dict[str, Any] = {"logit_bias": {str(ids[0]): 100, str(ids[1]): -100}}
        if numbers.random() < 0.5:
            fields = {"allowed_token_ids": ids, "stop_token_ids": ids[:1]}
        return Request("bias", self._base(**fields, min_tokens=numbers.choice((0, 1)), ignore_eos=True))

    def _stop(self) -> Request:
        # Of random weights only these make text in which a stop string can be.
        stops = self._numbers.sample(STOPS, self._numbers.randint(1, 3))
        allowed = list(self._limits.text_ids)
        return Request("stop", self._base(stop=stops, allowed_token_ids=allowed, ignore_eos=True))

    def _chat(self) -> Request:
        words = " ".join(self._numbers.choices(("the", "river", "and", "bread", "ü", "in", "東京"), k=8))
        body = self._base()
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": words}]
        body["max_tokens"] = min(body["max_tokens"], self._limits.max_model_len // 4)
        return Request("chat", body, path=CHAT)

    def _structured(self) -> Request:
        body = self._base(structured_outputs=self._numbers.choice(FORMS), max_tokens=100)
        body["prompt"] = body["prompt"][: self._limits.max_model_len - 100]
        body["n"] = self._numbers.choice((1, 1, 1, 3))
        body.pop("ignore_eos", None)  # the end of the form is the end of the answer
        return Request("structured", body)

    def _left(self) -> Request:
        body = self._base(max_tokens=self._limits.longest_answer, ignore_eos=True, stream=True, temperature=1.0)
        body["prompt"] = body["prompt"][: self._limits.max_model_len - self._limits.longest_answer]
        body |= {"n": self._numbers.choice((1, 1, 2))}
        return Request("left", body, leave_after_events=self._numbers.randint(1, 8))

    def _left_at_once(self) -> Request:
        body = self._base(max_tokens=self._limits.longest_answer, ignore_eos=True)
        body["prompt"] = body["prompt"][: self._limits.max_model_len - self._limits.longest_answer]
        return Request("left at once", body, leave_after_s=self._numbers.choice((0.0, 0.003, 0.02, 0.2)))

    def _bad(self) -> Request:
        limits = self._limits
        wrong: tuple[dict[str, Any], ...] = (
            {"prompt": []},
            {"prompt": [limits.vocab_size]},
            {"prompt": [-1]},
            {"prompt": [5] * (limits.max_model_len + 1)},
            {"max_tokens": limits.max_model_len},
            {"max_tokens": -2},
            {"n": 0},
            {"temperature": -0.1},
            {"temperature": "hot"},
            {"top_p": 1.5},
            {"logprobs": 21},
            {"logit_bias": {"x": 1}},
            {"logit_bias": {str(limits.vocab_size): 1}},
            {"stop": [""]},
            {"stop_token_ids": [limits.vocab_size]},
            {"allowed_token_ids": []},
            {"min_tokens": 50, "max_tokens": 4},
            {"guided_regex": "("},
            {"structured_outputs": {"json": {"type": "strange"}}},
            {"best_of": 1, "n": 2},
        )
        fields = self._numbers.choice(wrong)
        return Request("bad", self._base([7, 8, 9], max_tokens=4) | fields, status=400)
