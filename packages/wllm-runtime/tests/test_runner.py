"""What a step launches, and that graphs, padding and neighbours change nothing of what a request gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from wllm_kernels import dispatch
from wllm_runtime import EngineConfig
from wllm_runtime import runner as runner_module
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_runtime.testing import RecordedGraphs, save_tiny_llama, tokens_of
from wllm_sched import SamplingParams, Submit, TokenEvent

VIEWS = {"view", "slice", "select", "detach", "alias", "unbind", "as_strided", "_unsafe_view", "t"}


@pytest.fixture
def engine_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModelEngine]]:
    """Makes an engine; with `graphs`, every step replays a recorded one."""
    save_tiny_llama(tmp_path)
    engines: list[ModelEngine] = []

    def make(*, graphs: bool, **settings: Any) -> ModelEngine:
        with monkeypatch.context() as patch:
            if graphs:
                patch.setattr(runner_module, "graph_backend", lambda _: RecordedGraphs())
            sizes: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64} | settings
            engine = create_engine(EngineConfig(model=str(tmp_path), skip_tokenizer_init=True, device="cpu", **sizes))
        engines.append(engine)
        engine._model_runner.capture(lambda done, total: None)
        return engine

    yield make
    for engine in engines:
        engine.close()


class Launches(TorchDispatchMode):
    """Notes every torch op but views, and each op of wllm and each replay as one."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._is_inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))

    def as_one(self, name: str, function: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            if self._is_inside:
                return function(*args)
            self.names.append(name)
            self._is_inside = True
            with _disable_current_modes():
                function(*args)
            self._is_inside = False

        return run


def launches_of_a_decode_step(engine: ModelEngine, monkeypatch: pytest.MonkeyPatch, **params: Any) -> list[str]:
    """What a step of three decoding rows launches once its rows stay the same."""
    for request_id in range(3):
        engine.submit(
            Submit(request_id, [5, 6, 7 + request_id], SamplingParams(max_tokens=60, ignore_eos=True, **params))
        )
    for _ in range(8):
        engine.step()
    engine.drain()
    launches = Launches()
    for op in dispatch.OPS:
        monkeypatch.setitem(op._functions, "cpu", launches.as_one(op.name, op._functions["cpu"]))
    graphs = engine._model_runner._graphs
    assert graphs is not None
    bucket = graphs.for_decode(3)
    assert bucket is not None
    monkeypatch.setattr(
        graphs, "for_decode", lambda _: bucket._replace(replay=launches.as_one("replay", bucket.replay))
    )
    plan = engine.scheduler.plan()
    assert plan is not None and len(plan.rows) == plan.num_decode_rows == 3 and not plan.new_slots
    with launches:
        collect = engine._model_runner._run(plan)
    engine.scheduler.commit(plan, collect())
    return launches.names


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.01}])
def test_a_decode_step_is_one_copy_one_replay_the_draw_and_the_way_back(
    engine_of: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    # On CUDA `sample` is two kernels, three with top-k or top-p; with the event and its wait that is eight calls (I16).
    # Nothing allocates: there is no empty, no clone, no result of an operator.
    names = launches_of_a_decode_step(engine_of(graphs=True), monkeypatch, **params)
    assert names == ["copy_", "replay", "sample", "advance_step"]


ASKED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "top_p": 0.8, "seed": 2, "logprobs": 3},
    {"temperature": 1.2, "top_k": 9, "min_p": 0.02, "seed": 3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0, "repetition_penalty": 1.4, "logprobs": 0},
    {"temperature": 1.0, "seed": 4, "bad_words_token_ids": [(9,), (30, 31), (8, 9, 10)], "logit_bias": {12: 3.0}},
    {"temperature": 1.0, "seed": 5, "min_tokens": 9, "stop_token_ids": list(range(3, 60)), "ignore_eos": False},
    {"temperature": 1.0, "seed": 6, "allowed_token_ids": [3, 31, 32, 63, 64, 95], "n": 2},
    {"temperature": 0, "prompt_logprobs": 2},
]


def answers(engine: ModelEngine, *, together: bool) -> list[tuple[Any, ...]]:
    """Tokens and log-probabilities of all that `ASKED` asks for, at once or one after the other."""
    events: list[TokenEvent] = []
    for request_id, params in enumerate(ASKED):
        asked = SamplingParams(**({"max_tokens": 16, "ignore_eos": True} | params))
        prompt = [(7 * i + 11 * request_id) % 90 + 3 for i in range(5 + 9 * request_id)]
        engine.submit(Submit(request_id, prompt, asked))
        while not together and engine.has_work():
            events += engine.step()
    while engine.has_work():
        events += engine.step()
    found = []
    for request_id, params in enumerate(ASKED):
        of_request = [event for event in events if event.request_id == request_id]
        assert not any(event.error for event in of_request), of_request
        for index in range(params.get("n", 1)):
            logprobs = [entry for event in of_request if event.index == index for entry in event.logprobs or ()]
            ranks = [(entry.token_id, entry.rank, [token for token, _ in entry.top]) for entry in logprobs]
            scored = [event.prompt_logprobs for event in of_request if event.prompt_logprobs is not None]
            prompt_ranks = [entry and (entry.token_id, entry.rank) for entries in scored for entry in entries]
            found.append((tokens_of(of_request, index), ranks, prompt_ranks))
    return found


def test_graphs_and_neighbours_change_nothing(engine_of: Callable[..., ModelEngine]) -> None:
    alone = answers(engine_of(graphs=False), together=False)
    assert all(len(tokens) >= 10 for tokens, _, _ in alone)
    assert len(alone[2][1]) == len(alone[4][1]) == 16 and len(alone[-1][2]) == 5 + 9 * 8
    eager, graphed = engine_of(graphs=False), engine_of(graphs=True)
    assert answers(eager, together=True) == alone
    assert answers(graphed, together=True) == alone
    stats = graphed.stats()
    assert stats.graph_replays_total == stats.steps_total > 0 and stats.eager_steps_total == 0
    stats = eager.stats()
    assert stats.graph_replays_total == 0 and stats.eager_steps_total == stats.steps_total


@pytest.mark.parametrize("graphs", [False, True])
def test_a_prompt_of_more_new_blocks_than_the_buffer_holds(
    engine_of: Callable[..., ModelEngine], graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [(5 * i) % 90 + 3 for i in range(100)]
    few = engine_of(graphs=graphs, max_num_seqs=2, max_num_batched_tokens=128, block_size=8)
    expected = engine_of(graphs=False, max_num_seqs=16, max_num_batched_tokens=128, block_size=8)
    tables, seen = few._model_runner._tables, []
    monkeypatch.setattr(
        tables, "append_blocks", lambda entries: seen.append(1) or type(tables).append_blocks(tables, entries)
    )
    tokens = []
    for engine in (few, expected):
        events = []
        engine.submit(Submit(0, prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)))
        while engine.has_work():
            events += engine.step()
        tokens.append(tokens_of(events))
    assert tokens[0] == tokens[1] and len(tokens[0]) == 12
    assert seen


def test_a_rehearsal_changes_nothing_on_the_device(engine_of: Callable[..., ModelEngine]) -> None:
    engine = engine_of(graphs=True)
    engine.submit(Submit(0, [5, 6, 7], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)))
    for _ in range(5):
        engine.step()
    engine.drain()
    runner = engine._model_runner
    tables = runner._tables
    state = [
        tables.token_table,
        tables.block_tables,
        tables.lengths,
        tables.num_prompt_tokens,
        runner._forward._kv.data,
    ]
    before = [tensor.clone() for tensor in state]
    runner.rehearse(64, 8)
    runner.rehearse(1, 1)
    for was, now in zip(before, state, strict=True):
        assert torch.equal(was.nan_to_num(), now.nan_to_num())
    assert runner.stats().eager_steps == 0  # a rehearsal is no step
