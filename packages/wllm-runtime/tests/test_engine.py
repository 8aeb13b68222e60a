"""The engine as a whole: what it loads, and that its steps overlap."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from wllm_runtime import EngineConfig
from wllm_runtime.engine import create_engine
from wllm_runtime.testing import generate, save_tiny_llama, tokens_of

NO_SLOW_IMPORT = """
import sys
from wllm_runtime import EngineConfig
assert "torch" not in sys.modules, "importing the package loads torch"
from wllm_runtime.engine import create_engine
from wllm_sched import SamplingParams, Submit
engine = create_engine(EngineConfig(model=sys.argv[1], skip_tokenizer_init=True))
engine.submit(Submit(0, [5, 6, 7], SamplingParams(max_tokens=3, ignore_eos=True)))
while engine.has_work():
    engine.step()
assert engine.stats().generation_tokens_total == 3
print("slow modules:", [name for name in ("transformers", "huggingface_hub", "gguf") if name in sys.modules])
"""


def test_a_model_runs_without_transformers(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", NO_SLOW_IMPORT, str(tmp_path)], capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "slow modules: []"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_is_reached_and_changes_nothing(tmp_path: Path, depth: int) -> None:
    save_tiny_llama(tmp_path)
    engine = create_engine(EngineConfig(model=str(tmp_path), skip_tokenizer_init=True, pipeline_depth=depth))
    tokens = tokens_of(generate(engine, [5, 6, 7], temperature=0, max_tokens=20, ignore_eos=True))
    assert engine.stats().max_in_flight_seen == depth
    one = create_engine(EngineConfig(model=str(tmp_path), skip_tokenizer_init=True, pipeline_depth=1))
    assert tokens == tokens_of(generate(one, [5, 6, 7], temperature=0, max_tokens=20, ignore_eos=True))
    engine.close()
    one.close()


def test_given_sampling_replaces_the_models_own(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)
    model.generation_config.temperature, model.generation_config.top_k = 0.6, 40
    model.generation_config.do_sample = True
    model.generation_config.save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), skip_tokenizer_init=True)
    assert create_engine(config).model_info.default_sampling == {"temperature": 0.6, "top_k": 40}
    changed = dataclasses.replace(config, override_generation_config={"temperature": 0.1, "min_p": 0.2})
    info = create_engine(changed).model_info
    assert info.default_sampling == {"temperature": 0.1, "top_k": 40, "min_p": 0.2}
    assert ("default_sampling", "temperature 0.1, top_k 40, min_p 0.2") in [row[:2] for row in info.settings]


def test_samples_of_one_prompt_share_its_blocks(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    engine = create_engine(EngineConfig(model=str(tmp_path), skip_tokenizer_init=True, num_kv_blocks=12, block_size=8))
    prompt = list(range(3, 67))  # 8 blocks: four samples would need 32 of 12 if they did not share
    events = generate(engine, prompt, temperature=0, max_tokens=4, ignore_eos=True, n=4)
    samples = [tokens_of(events, index) for index in range(4)]
    assert samples[0] == samples[1] == samples[2] == samples[3]
    assert len(samples[0]) == 4
    assert engine.stats().preemptions_total == 0
