"""Batches carry every field of an event."""

import pickle
from dataclasses import fields

from wllm_api.engine.wire import Batch
from wllm_sched.messages import EngineStats, TokenEvent
from wllm_sched.plan import TokenLogprobs


def test_events_arrive_as_they_were() -> None:
    entry = TokenLogprobs(3, -0.5, 1, ((3, -0.5), (4, -1.0)))
    full = TokenEvent(7, 2, (3, 4), (entry, entry), "error", 4, 16, (None, entry), "text", "code", "parameter")
    assert all(getattr(full, field.name) not in (None, ()) for field in fields(full))
    events = [full, TokenEvent(8, 0, (1,))]
    batch = pickle.loads(pickle.dumps(Batch.pack(events, EngineStats(num_running=3))))
    assert batch.events() == events
    assert batch.stats == EngineStats(num_running=3)
