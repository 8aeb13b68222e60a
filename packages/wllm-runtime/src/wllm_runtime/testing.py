"""The reference that tests and benchmarks compare the engine with: transformers' own model on the same weights.

Nothing in the engine imports this module.
"""

from __future__ import annotations

import transformers

from wllm_runtime.checkpoint import open_checkpoint


def transformers_model(model: str) -> transformers.PreTrainedModel:
    """transformers' causal language model, float32 on the CPU, with the weights of a checkpoint (GGUF files too)."""
    checkpoint = open_checkpoint(model, skip_tokenizer=True)
    reader = checkpoint.weights
    assert reader is not None
    try:
        state = {name: reader.read(name).float() for name in reader.names()}
    finally:
        reader.close()
    reference = transformers.AutoModelForCausalLM.from_config(checkpoint.config, dtype="float32")
    missing, unexpected = reference.load_state_dict(state, strict=False)
    # A tied head is the embedding under another name; nothing else may be missing.
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    reference.tie_weights()
    return reference.eval()
