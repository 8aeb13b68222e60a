"""The transformer of a pooling model: built by transformers, filled from our reader, run on padded rows.

transformers is imported here and where a tokenizer must be converted, nowhere else: it is slow to import, and models
that write text do without.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn

from wllm_runtime.checkpoint import PoolingCheckpoint
from wllm_runtime.errors import UnsupportedModel, WeightsError
from wllm_sched import PooledText, Task

# Parts that a checkpoint may lack, since pooling never looks at them.
_UNUSED = ("pooler.",)


class Encoder:
    """A headless model (task "embed") or one with a classification head, on `device` in `dtype`.

    `architecture` is the class's name, `longest` the most tokens of a text, `vocab_size` the number of token ids;
    `is_causal` means that a token sees those before it only; `unused` are tensors that it has no place for.
    """

    def __init__(
        self, checkpoint: PoolingCheckpoint, task: Task, device: torch.device, dtype: torch.dtype, seed: int
    ) -> None:
        config = _config(checkpoint)
        found = _class_for(config, task)
        self.unused: list[str] = []
        if checkpoint.weights is None:
            auto = transformers.AutoModelForSequenceClassification if task == "score" else transformers.AutoModel
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = auto.from_config(config, dtype=dtype)
        else:
            model, self.unused = _loaded(found, config, checkpoint, dtype)
        model.config.use_cache = False
        self._model = model.to(device).eval()
        self.device = device
        self._pad_token_id = 0 if config.pad_token_id is None else config.pad_token_id
        # A classifier finds the last token of a row by the padding, so without any it takes one row at a time.
        self._takes_rows = task == "embed" or config.pad_token_id is not None
        parameters = inspect.signature(model.forward).parameters
        self._takes_types = "token_type_ids" in parameters and getattr(config, "type_vocab_size", 0) > 1
        self.architecture = found.__name__
        # Encoders have a causal class too, for decoders made of them; what was trained to fill gaps is none.
        self.is_causal = (
            type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
            and type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING
        )
        self.hidden_size = int(config.hidden_size)
        self.num_labels = int(config.num_labels)
        self.vocab_size = int(model.get_input_embeddings().num_embeddings)
        self.longest = _longest(model, config)
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self.weight_bytes = sum(parameter.nbytes for parameter in model.parameters())

    @torch.inference_mode()
    def hidden(self, texts: Sequence[PooledText]) -> tuple[torch.Tensor, torch.Tensor]:
        """The last hidden states [texts, tokens, hidden] in float32, and the mask [texts, tokens] of real tokens."""
        inputs = self._inputs(texts)
        return self._model(**inputs).last_hidden_state.float(), inputs["attention_mask"]

    @torch.inference_mode()
    def logits(self, texts: Sequence[PooledText]) -> torch.Tensor:
        """The logits [texts, labels] of the classification head in float32."""
        groups = [texts] if self._takes_rows else [[text] for text in texts]
        return torch.cat([self._model(**self._inputs(group)).logits.float() for group in groups])

    def _inputs(self, texts: Sequence[PooledText]) -> dict[str, torch.Tensor]:
        longest = max(len(text.token_ids) for text in texts)
        inputs = {
            "input_ids": self._rows([text.token_ids for text in texts], longest, self._pad_token_id),
            "attention_mask": self._rows([[1] * len(text.token_ids) for text in texts], longest, 0),
        }
        if self._takes_types:
            types = [text.token_type_ids or [0] * len(text.token_ids) for text in texts]
            inputs["token_type_ids"] = self._rows(types, longest, 0)
        return inputs

    def _rows(self, rows: Sequence[Sequence[int]], longest: int, padding: int) -> torch.Tensor:
        padded = [[*row, *[padding] * (longest - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=self.device)


def _config(checkpoint: PoolingCheckpoint) -> transformers.PreTrainedConfig:
    values = {name: value for name, value in checkpoint.values.items() if name != "transformers_version"}
    model_type = values.pop("model_type", None)
    try:
        config = transformers.AutoConfig.for_model(str(model_type), **values)
    except Exception as error:  # each family's class has its own kinds
        reason = str(error).partition(". Should contain")[0]
        raise UnsupportedModel(
            f"{checkpoint.path} describes the architecture {model_type!r}, which transformers "
            f"{transformers.__version__} cannot build: {reason}. Use a model that it knows."
        ) from error
    if config.is_encoder_decoder:
        raise UnsupportedModel(
            f"{checkpoint.path} has an encoder and a decoder (architecture {model_type!r}), and wLLM pools models of "
            "one stack only. Use another model."
        )
    return config


def _class_for(config: transformers.PreTrainedConfig, task: Task) -> type[transformers.PreTrainedModel]:
    known = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING if task == "score" else transformers.MODEL_MAPPING
    if type(config) not in known:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} has no model of the architecture {config.model_type!r} for the "
            f"task {task!r}. Use another model or task."
        )
    return known[type(config)]


def _loaded(
    found: type[transformers.PreTrainedModel],
    config: transformers.PreTrainedConfig,
    checkpoint: PoolingCheckpoint,
    dtype: torch.dtype,
) -> tuple[transformers.PreTrainedModel, list[str]]:
    reader = checkpoint.weights
    assert reader is not None, "dummy loading reads nothing"
    try:
        state = {name: reader.read(name) for name in reader.names()}
    finally:
        reader.close()
    try:
        with _quiet_transformers():
            model, report = found.from_pretrained(
                None, config=config, state_dict=state, dtype=dtype, output_loading_info=True
            )
    except Exception as error:  # what transformers raises for tensors of other shapes differs between its versions
        raise WeightsError(
            f"the tensors in {checkpoint.path} do not fit {found.__name__}: {error}. Fetch the model again."
        ) from error
    missing = [name for name in sorted(report["missing_keys"]) if not name.startswith(_UNUSED)]
    if missing:
        raise WeightsError(
            f"{checkpoint.path} lacks {len(missing)} tensors that {found.__name__} needs ({', '.join(missing[:4])}). "
            "Fetch the model again; for another --task it may have no head."
        )
    return model, sorted(report["unexpected_keys"])


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    # What is missing is told by us, as an error. The verbosity is this process's, so it is put back.
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _longest(model: nn.Module, config: Any) -> int:
    # Learned positions are a table, in the RoBERTa family behind the row of the padding. Rotation has only a number.
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] == "position_embeddings":
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    values: Mapping[str, Any] = config.to_dict()
    return int(values.get("max_position_embeddings") or values.get("n_positions") or 2**20)
