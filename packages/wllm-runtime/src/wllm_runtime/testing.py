"""What tests and benchmarks of the runtime share: the reference, a tiny model, and a request run to its end.

Nothing in the engine imports this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from wllm_runtime.checkpoint import open_checkpoint
from wllm_runtime.checkpoint.model_config import ModelConfig
from wllm_runtime.graphs import Replay, Timing
from wllm_sched import Engine, SamplingParams, Submit, TokenEvent

TINY_VOCAB_SIZE = 96


def transformers_model(model: str) -> transformers.PreTrainedModel:
    """transformers' causal language model, float32 on the CPU, with the weights of a checkpoint (GGUF files too)."""
    checkpoint = open_checkpoint(model, skip_tokenizer=True)
    reader = checkpoint.weights
    assert reader is not None
    try:
        state = {name: reader.read(name).float() for name in reader.names()}
    finally:
        reader.close()
    reference = transformers.AutoModelForCausalLM.from_config(_of_transformers(checkpoint.config), dtype=torch.float32)
    missing, unexpected = reference.load_state_dict(state, strict=False)
    # A tied head is the embedding under another name; nothing else may be missing.
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    reference.tie_weights()
    return reference.eval()


def _of_transformers(config: ModelConfig) -> transformers.PreTrainedConfig:
    values = {**dataclasses.asdict(config), "use_sliding_window": config.sliding_window is not None}
    model_type = values.pop("model_type")
    if model_type in ("llama", "mistral"):
        values.pop("layer_types")  # their classes know one kind
    return transformers.AutoConfig.for_model(model_type, **values)


def save_tiny_llama(folder: Path, **options: Any) -> transformers.PreTrainedModel:
    """Save a two-layer random Llama with `options` in its config to `folder`, without a tokenizer, and return it."""
    shape: dict[str, Any] = {
        "vocab_size": TINY_VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        # Wide enough that scores differ: with the usual 0.02 a random model's logits all but coincide.
        "initializer_range": 0.3,
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**(shape | options))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    return model


def generate(engine: Engine, prompt: Sequence[int], **params: Any) -> list[TokenEvent]:
    """The events of one request with these sampling parameters, run to its end."""
    engine.submit(Submit(0, list(prompt), SamplingParams(**params)))
    events = []
    while engine.has_work():
        events += engine.step()
    return events


def tokens_of(events: Sequence[TokenEvent], index: int = 0) -> list[int]:
    """The tokens of one sample."""
    return [token for event in events if event.index == index for token in event.token_ids]


class RecordedGraphs:
    """A backend of `GraphSet` for any device: a replay calls the recorded function again, over the same buffers.

    `replays` counts the replays of each capture, in their order. Each measurement is shorter than the one before, so
    that no bucket is dropped.
    """

    def __init__(self) -> None:
        self.replays: list[int] = []
        self._measured = 0

    def capture(self, work: Callable[[], None]) -> Replay:
        """Keep `work`."""
        number = len(self.replays)
        self.replays.append(0)

        def replay() -> None:
            self.replays[number] += 1
            work()

        return replay

    def measure(self, work: Callable[[], object]) -> Timing:
        """A made-up time; what is measured does not run."""
        self._measured += 1
        return Timing(1.0 / self._measured, 1.0 / self._measured)
