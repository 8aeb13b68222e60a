"""The border types cross a pipe."""

from __future__ import annotations

import pickle

import pytest

from wllm_sched import Abort, EngineClosed, EngineStats, ModelInfo, RequestRefused, SamplingParams, Submit, TokenEvent
from wllm_sched.plan import TokenLogprobs

MESSAGES = [
    Submit(3, [1, 2, 3], SamplingParams(n=2, stop="x")),
    Abort(3),
    Abort(3, 1),
    TokenEvent(3, 0, (5,), (TokenLogprobs(5, -1.0, 1, ((5, -1.0),)),), "stop", 5, 12, (None,)),
    EngineStats(num_running=3),
    ModelInfo("m", "Llama", None, None, {}, (2,), None, 100, 64, 10, 16, "float32", "cpu"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_pickling(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message


def test_a_refusal_survives_pickling_with_its_reason() -> None:
    copy = pickle.loads(pickle.dumps(RequestRefused("too long", parameter="prompt", code="context_length_exceeded")))
    assert (str(copy), copy.parameter, copy.code) == ("too long", "prompt", "context_length_exceeded")


def test_closed_survives_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(EngineClosed("closed")))) == "closed"
