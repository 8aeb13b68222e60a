"""Batches carry every field of an event."""

import pickle
from dataclasses import fields

from wllm_api.engine.wire import Batch
from wllm_sched.messages import EngineStats, TokenEvent


def test_events_arrive_as_they_were() -> None:
    # Each field with a value of its own, so that a field that is forgotten or swapped shows.
    full = TokenEvent(*((n, field.name) for n, field in enumerate(fields(TokenEvent))))  # type: ignore[arg-type]
    events = [full, TokenEvent(8, 0, (1,))]
    batch = pickle.loads(pickle.dumps(Batch.pack(events, EngineStats(num_running=3))))
    assert batch.events() == events
    assert batch.stats == EngineStats(num_running=3)
