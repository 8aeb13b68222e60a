"""The scripted engine keeps the promises of `ServedEngine`."""

import random
from collections import defaultdict

import pytest

from wllm_api.engine.scripted import ScriptedEngine, create_scripted_engine
from wllm_api.engine.scripted_model import VOCAB_SIZE
from wllm_api.text import Tokenizer
from wllm_sched.errors import RequestRefused
from wllm_sched.messages import Abort, ServedEngine, Submit, TokenEvent
from wllm_sched.sampling import SamplingParams

END, TURN_END = 0, 2


def _serve(engine: ScriptedEngine) -> dict[tuple[int, int], list[TokenEvent]]:
    events: dict[tuple[int, int], list[TokenEvent]] = defaultdict(list)
    while engine.has_work():
        for event in engine.step():
            events[event.request_id, event.index].append(event)
    return events


def _one(params: SamplingParams, prompt: tuple[int, ...] = (5, 6, 7), **options: object) -> TokenEvent:
    engine = create_scripted_engine({"tokens_per_step": 10_000, **options})
    engine.submit(Submit(0, prompt, params))
    (event,) = _serve(engine)[0, 0]
    return event


def _text(event: TokenEvent) -> str:
    return _tokenizer().decode(event.token_ids)


def _tokenizer() -> Tokenizer:
    engine: ServedEngine = create_scripted_engine({})
    assert engine.model_info.tokenizer_json is not None
    return Tokenizer.from_json(engine.model_info.tokenizer_json)


def test_every_sample_gets_one_final_event() -> None:
    # I13, under random submits and aborts
    rng = random.Random(7)
    aborted = 0
    for _ in range(100):
        engine = create_scripted_engine({"max_num_seqs": rng.randint(1, 6), "tokens_per_step": rng.randint(1, 3)})
        counts: dict[tuple[int, int], int] = {}
        finals: dict[tuple[int, int], int] = defaultdict(int)
        for step in range(40):
            if step < 20 and rng.random() < 0.7:
                params = SamplingParams(n=rng.randint(1, 3), max_tokens=rng.randint(0, 20), seed=1)
                engine.submit(Submit(step, [5] * rng.randint(1, 40), params))
                counts |= {(step, index): 0 for index in range(params.n)}
            if rng.random() < 0.3:
                engine.abort(Abort(rng.randrange(20), rng.choice([None, 0, 1])))
            for event in engine.step() if engine.has_work() else ():
                assert not finals[event.request_id, event.index], "an event after the last"
                finals[event.request_id, event.index] += event.finish_reason is not None
                aborted += event.finish_reason == "abort"
        for key, events in _serve(engine).items():
            finals[key] += sum(event.finish_reason is not None for event in events)
            aborted += events[-1].finish_reason == "abort"
        assert {key: finals[key] for key in counts} == dict.fromkeys(counts, 1)
        assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 0)
    assert aborted > 100


def test_the_reply_ends_with_the_end_token() -> None:
    event = _one(SamplingParams(max_tokens=100), reply="Hello the 🫠")
    assert (_text(event), event.finish_reason, event.stop_token_id) == ("Hello the 🫠", "stop", TURN_END)
    assert event.token_ids[-1] == TURN_END


def test_limits_and_forced_lengths() -> None:
    assert len(_one(SamplingParams(max_tokens=3), reply="abcdef").token_ids) == 3
    assert len(_one(SamplingParams(max_tokens=50, ignore_eos=True), reply="abc").token_ids) == 50
    event = _one(SamplingParams(max_tokens=50, min_tokens=10), reply="abc")
    assert (len(event.token_ids), event.finish_reason) == (11, "stop")
    assert len(_one(SamplingParams(max_tokens=None, ignore_eos=True), max_model_len=64).token_ids) == 61


def test_a_stop_id_ends_the_sample() -> None:
    stop = _tokenizer().encode("c")[0]
    event = _one(SamplingParams(max_tokens=50, stop_token_ids=[stop]), reply="abcdef")
    assert (_text(event), event.stop_token_id) == ("abc", stop)


def test_seeds_decide_the_answer() -> None:
    texts = [_one(SamplingParams(seed=seed, max_tokens=40)).token_ids for seed in (1, 1, 2, None, None)]
    assert texts[0] == texts[1]
    assert len({*texts}) == 4


def test_samples_of_one_seed_differ() -> None:
    engine = create_scripted_engine({})
    engine.submit(Submit(0, [5], SamplingParams(n=3, seed=7, max_tokens=40)))
    assert len({tuple(t for event in events for t in event.token_ids) for events in _serve(engine).values()}) == 3


def test_biases_bans_and_allowed_ids() -> None:
    token = _tokenizer().encode("z")[0]
    assert set(_one(SamplingParams(max_tokens=4, logit_bias={token: 100})).token_ids) == {token}
    assert set(_one(SamplingParams(max_tokens=4, logit_bias={VOCAB_SIZE - 1: 100})).token_ids) == {VOCAB_SIZE - 1}
    assert set(_one(SamplingParams(max_tokens=4, allowed_token_ids=[token])).token_ids) == {token}
    banned = _tokenizer().encode("b")[0]
    assert _text(_one(SamplingParams(max_tokens=3, logit_bias={banned: -100}), reply="abc")) == "aac"


def test_logprobs_have_the_shape_asked_for() -> None:
    event = _one(SamplingParams(max_tokens=4, logprobs=3, prompt_logprobs=2))
    assert event.logprobs is not None
    assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
    assert all(len(entry.top) == 3 and entry.top[0] == (entry.token_id, entry.logprob) for entry in event.logprobs)
    assert event.prompt_logprobs is not None
    assert event.prompt_logprobs[0] is None
    assert [entry.token_id for entry in event.prompt_logprobs if entry is not None] == [6, 7]
    bare = _one(SamplingParams(max_tokens=1, logprobs=0)).logprobs
    assert bare is not None
    assert bare[0].top == ()
    infinite = _one(SamplingParams(max_tokens=1, logprobs=5), infinite_logprobs=True).logprobs
    assert infinite is not None
    assert infinite[0].top[-1][1] == float("-inf")


def test_no_tokens_only_score_the_prompt() -> None:
    event = _one(SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert (event.token_ids, event.finish_reason) == ((), "length")
    assert event.prompt_logprobs is not None
    assert len(event.prompt_logprobs) == 3


@pytest.mark.parametrize("prompt", [[], [-1], [VOCAB_SIZE], [5] * 4096])
def test_what_can_never_run_is_refused(prompt: list[int]) -> None:
    engine = create_scripted_engine({})
    with pytest.raises(RequestRefused):
        engine.submit(Submit(0, prompt, SamplingParams()))
    assert not engine.has_work()


def test_the_same_prompt_again_is_cached_in_whole_blocks() -> None:
    engine = create_scripted_engine({})
    for request_id in range(2):
        engine.submit(Submit(request_id, [5] * 48, SamplingParams(max_tokens=1)))
    events = _serve(engine)
    assert [events[request_id, 0][0].num_cached_tokens for request_id in range(2)] == [0, 32]
    assert engine.stats().prefix_cache_hits_total == 32


def test_stats_show_what_runs_and_waits() -> None:
    engine = create_scripted_engine({"max_num_seqs": 2})
    for request_id in range(3):
        engine.submit(Submit(request_id, [5] * 20, SamplingParams(max_tokens=50, ignore_eos=True)))
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    assert stats.num_blocks - stats.num_free_blocks == 4
