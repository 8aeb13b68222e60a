"""`wllm bench profile` and `ablate`: sums over what a profiler saw, and both commands on a tiny model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from wllm.bench.driver import Driver
from wllm.bench.errors import BenchError
from wllm.bench.lengths import PromptMaker
from wllm.bench.phases import PhaseClock, phases_of
from wllm.bench.results import Report
from wllm.bench.scenes import DecodeScene, PrefillScene
from wllm.bench.shapes import SHAPES, write_shape
from wllm.bench.techniques import Pause, SecondFirstToken, techniques
from wllm.bench.trace import KernelTime, Span, driver_calls, idle_share, kernel_times, operator_times
from wllm.cli import main

SPANS = [
    Span("cudaGraphLaunch", 0, 2, on_device=False),
    Span("cuLaunchKernelEx", 2, 3, on_device=False),
    Span("cudaGraphLaunch", 3, 4, on_device=False),
    Span("custom::op", 0, 4, on_device=False),
    Span("attention", 10, 14, on_device=True),
    Span("norm", 12, 15, on_device=True),  # beside the end of attention
    Span("attention", 25, 30, on_device=True),
]


def test_kernels_are_summed_and_the_longest_comes_first() -> None:
    assert kernel_times(SPANS) == [KernelTime("attention", 9, 2), KernelTime("norm", 3, 1)]


def test_idle_time_is_what_no_kernel_covers() -> None:
    assert idle_share(SPANS) == pytest.approx(10 / 20)
    assert idle_share(SPANS[:4]) is None


def test_driver_calls_are_counted_by_name() -> None:
    assert driver_calls(SPANS) == {"cudaGraphLaunch": 2, "cuLaunchKernelEx": 1}


def test_an_operator_does_not_count_those_that_it_called() -> None:
    spans = [
        Span("outer", 0, 10, False),
        Span("inner", 1, 4, False),
        Span("innermost", 2, 3, False),
        Span("inner", 5, 6, False),
        Span("outer", 0, 3, False, thread=1),  # beside it, not in it
    ]
    assert operator_times(spans) == [
        KernelTime("outer", 6 + 3, 2),
        KernelTime("inner", 2 + 1, 2),
        KernelTime("innermost", 1, 1),
    ]


def test_a_phase_that_raises_is_timed_too() -> None:
    clock = PhaseClock(iter((1.0, 3.0, 10.0, 11.0)).__next__)
    assert clock.timed("plan", lambda: "a plan") == "a plan"
    with pytest.raises(KeyError):
        clock.timed("plan", {}.__getitem__, "missing")
    assert clock.seconds == {"plan": [2.0, 1.0]}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    model = write_shape("tiny", tmp_path_factory.mktemp("shapes"))
    settings = {"load_format": "dummy", "skip_tokenizer_init": True, "num_kv_blocks": 128, "device": "cpu"}
    sizes = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 128}
    driver = Driver(str(model), {**settings, **sizes})
    yield driver
    driver.close()


def test_the_decode_scene_decodes_and_nothing_else(driver: Driver) -> None:
    scene = DecodeScene(driver, PromptMaker(500, 0), batch=4, prompt_len=20, steps=6)
    scene.prepare()
    before = driver.engine.stats()
    scene.act()
    after = driver.engine.stats()
    scene.clear_up()
    assert after.prefill_chunks_total == before.prefill_chunks_total
    assert after.generation_tokens_total - before.generation_tokens_total == 4 * (
        after.steps_total - before.steps_total
    )
    assert after.steps_total > before.steps_total
    assert not driver.engine.has_work()


def test_a_scene_that_does_not_fit_says_so(driver: Driver) -> None:
    with pytest.raises(BenchError, match="lower --steps"):
        DecodeScene(driver, PromptMaker(500, 0), batch=1, prompt_len=20, steps=2000).prepare()


def test_phases_see_every_step_and_leave_the_engine_as_it_was(driver: Driver) -> None:
    engine = driver.engine
    parts = engine.scheduler, engine.runner
    steps = engine.stats().steps_total
    with phases_of(engine) as clock:
        PrefillScene(driver, PromptMaker(500, 1), prompt_len=30).act()
    steps = engine.stats().steps_total - steps
    assert steps > 0
    assert [len(clock.seconds[phase]) for phase in ("launch", "wait", "commit")] == [steps] * 3
    assert (engine.scheduler, engine.runner) == parts


def test_a_prompt_seen_before_hits_the_cache(driver: Driver) -> None:
    hits = driver.engine.stats().prefix_cache_hits_total
    SecondFirstToken(64).sample(driver, PromptMaker(500, 2))
    assert driver.engine.stats().prefix_cache_hits_total - hits >= 48


def test_a_pause_is_seen_while_chunks_run(driver: Driver) -> None:
    chunks = driver.engine.stats().prefill_chunks_total
    pause = Pause(num_streams=4, prompt_len=600).sample(driver, PromptMaker(500, 3))
    assert pause > 0
    assert driver.engine.stats().prefill_chunks_total - chunks > 4 + 1
    assert not driver.engine.has_work()


def test_off_means_off() -> None:
    """Every setting differs from the engine's default, and graphs are switched only where there are any."""
    numbers = {"num_blocks": 100, "block_size": 16, "max_model_len": 400, "long_prompt": 300}
    on_cpu = {one.name: one.settings for one in techniques(device="cpu", **numbers)}
    on_gpu = {one.name: one.settings for one in techniques(device="cuda:0", **numbers)}
    assert on_gpu == {"CUDA graphs": {"enforce_eager": True}, **on_cpu}
    assert on_cpu["paging"] == {"max_num_seqs": 4}
    assert on_cpu["chunking"]["max_num_batched_tokens"] > 300
    assert on_cpu["two steps in flight"] == {"pipeline_depth": 1}
    assert on_cpu["prefix cache"] == {"enable_prefix_caching": False}


def test_the_profile_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--batch", "2", "--steps", "12", "--prompt-len", "16", "--prefill-len", "64", "--num-kv-blocks", "128")
    assert main(["bench", "profile", "--shape", "tiny", *sizes, "--json", str(tmp_path / "p.json")]) == 0
    table = capsys.readouterr().out
    assert "rest of the loop" in table and "a step in" in table
    rows = {row.what: row.value for row in Report.load(tmp_path / "p.json").rows}
    parts = {what: value for what, value in rows.items() if what.startswith("decode step") and ": host, " in what}
    (whole,) = (value for what, value in parts.items() if what.endswith("whole"))
    assert sum(parts.values()) == pytest.approx(2 * whole, rel=1e-6)
    assert any("aten::" in what for what in rows)


@pytest.mark.parametrize("command", ["latency", "ablate", "compare"])
def test_a_row_that_cannot_fit_is_refused_before_the_first(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    long = ("--max-model-len", "256", "--prompt-len", "250", "--output-len", "16", "--batches", "1")
    assert main(["bench", command, "--shape", "tiny", "--device", "cpu", *long]) == 1
    seen = capsys.readouterr()
    assert "'decode step, batch 1 (250 in, 16 out)' has requests of 266 tokens, and the context here is 256" in seen.err
    assert "ms" not in seen.out


def test_the_ablate_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--batches", "2", "--prompt-len", "16", "--output-len", "16", "--num-requests", "6", "--longest", "16")
    more = ("--first-token-len", "64", "--long-prompt", "300", "--num-kv-blocks", "128", "--repeats", "1")
    assert main(["bench", "ablate", "--shape", "tiny", *sizes, *more, "--json", str(tmp_path / "a.json")]) == 0
    report = Report.load(tmp_path / "a.json")
    assert report.engines == ["all on", "no two steps in flight", "no prefix cache", "no chunking", "no paging"]
    whats = {engine: [row.what for row in report.rows if row.engine == engine] for engine in report.engines}
    assert len(whats["all on"]) == 4
    assert len(whats.pop("no paging")) == 1
    assert len({tuple(each) for each in whats.values()}) == 1
    assert any("fit into the KV cache" in remark for remark in report.remarks)
    assert "fit into the KV cache" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_the_commands_in_process(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {
        # Answers that take a while: a busy machine must not make the longer run look like the shorter.
        "latency": ("--batches", "1,2", "--prompt-len", "8", "--output-len", "64", "--first-token-len", "32"),
        "throughput": ("--num-requests", "5", "--longest", "12"),
    }
    more = ("--prefill", "2x16") if command == "latency" else ()
    json_file = tmp_path / "result.json"
    arguments = [*sizes[command], *more, "--num-kv-blocks", "128", "--repeats", "2", "--json", str(json_file)]
    assert main(["bench", command, "--shape", "tiny", *arguments]) == 0
    report = Report.load(json_file)
    assert [len(row.samples) for row in report.rows] == [2] * (4 if command == "latency" else 2)
    floors = [row.floor is not None for row in report.rows]
    assert floors == ([True, True, False, False] if command == "latency" else [False, False])
    shown = capsys.readouterr()
    assert all(row.what in shown.out for row in report.rows)
    assert [line for line in shown.err.splitlines() if line.startswith("measuring ")] == [
        f"measuring {row.what}"
        for row in report.rows
        if not row.what.startswith("in and output")  # comes of the same measurement as the row before it
    ]


def test_a_shape_and_a_model_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "some/model", "--shape", "tiny"]) == 1
    assert "leave one out" in capsys.readouterr().err


@pytest.mark.parametrize(("shape", "weight_gb"), [("qwen2.5-0.5b", 0.988), ("llama-3.1-8b", 15.01)])
def test_shapes_are_those_of_the_models(shape: str, weight_gb: float, tmp_path: Path) -> None:
    from wllm.bench.floor import Floor
    from wllm_runtime.checkpoint import open_checkpoint
    from wllm_runtime.models.decoder_config import DecoderConfig

    checkpoint = open_checkpoint(write_shape(shape, tmp_path), load_format="dummy", skip_tokenizer=True)
    floor = Floor.of(DecoderConfig.from_pretrained(checkpoint.config), 2, 1.0)
    assert floor.weight_bytes / 1e9 == pytest.approx(weight_gb, rel=2e-3)
    assert checkpoint.config.max_position_embeddings == SHAPES[shape]["max_position_embeddings"]


@pytest.mark.parametrize("tied", [True, False])
def test_floor_is_of_the_weights_that_a_step_reads(tied: bool, tmp_path: Path) -> None:
    """A tied head is the embedding, read as a whole; beside a head of its own, no embedding is read."""
    from wllm.bench.floor import Floor
    from wllm_runtime.checkpoint import open_checkpoint
    from wllm_runtime.models.decoder_config import DecoderConfig
    from wllm_runtime.models.loading import weight_bytes

    checkpoint = open_checkpoint(write_shape("llama-3.1-8b", tmp_path), load_format="dummy", skip_tokenizer=True)
    config = dataclasses.replace(DecoderConfig.from_pretrained(checkpoint.config), tie_word_embeddings=tied)
    embedding = 0 if tied else 2 * config.vocab_size * config.hidden_size
    read = weight_bytes(config, torch.bfloat16) - embedding
    assert Floor.of(config, 2, 1.0).weight_bytes == pytest.approx(read, rel=1e-3)  # norms are left out
