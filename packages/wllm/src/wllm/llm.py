"""`LLM`: a model in this process, driven directly: no server, no second process, no `__main__` guard.

Owns its engine and calls it from the caller's thread only. Text in and out goes through `wllm_api.text`, the same code
that the server uses.
"""

from __future__ import annotations

import itertools
import operator
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias, cast

from tqdm import tqdm

from wllm.collector import Collector
from wllm.default_model import default_model
from wllm.interrupts import deferred_interrupts
from wllm.outputs import EmbeddingRequestOutput, RequestOutput, ScoringRequestOutput
from wllm.pooling import OfflinePooler, Vector, run_pool
from wllm_api.control_tokens import control_tokens
from wllm_api.text import ChatTemplate, Tokenizer, resolve_bad_words
from wllm_api.tools import answer_format
from wllm_runtime.config import Device, DType, EngineConfig, KVCacheDType, LoadFormat, StepWait, TaskChoice
from wllm_runtime.open_engine import open_engine
from wllm_runtime.pooling.engine import PoolingEngine
from wllm_sched import Abort, EngineStats, ModelInfo, Pool, PooledText, SamplingParams, Submit, TokenEvent

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
Message: TypeAlias = Mapping[str, Any]


class LLM:
    """A loaded model. Arguments are those of `wllm serve`; None means "choose for me".

    Raises `ConfigError` or `CheckpointError` (which say what to do) when the model cannot be run as asked.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        device: Device = "auto",
        dtype: DType = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        block_size: int = 16,
        num_kv_blocks: int | None = None,
        gpu_memory_utilization: float = 0.9,
        enable_prefix_caching: bool = True,
        load_format: LoadFormat = "auto",
        quantization: str | None = None,
        kv_cache_dtype: KVCacheDType = "auto",
        kv_offload_gib: float = 0.0,
        revision: str | None = None,
        skip_tokenizer_init: bool = False,
        seed: int = 0,
        pipeline_depth: int = 2,
        max_stall_ms: float = 100.0,
        enforce_eager: bool = False,
        step_wait: StepWait = "auto",
        override_generation_config: Mapping[str, float] | None = None,
        task: TaskChoice = "auto",
    ) -> None:
        if model is None:
            chosen = default_model()
            model, override_generation_config = chosen.model, override_generation_config or chosen.sampling
        config = EngineConfig(
            model=str(model),
            device=device,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            gpu_memory_utilization=gpu_memory_utilization,
            enable_prefix_caching=enable_prefix_caching,
            load_format=load_format,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            kv_offload_gib=kv_offload_gib,
            revision=revision,
            skip_tokenizer_init=skip_tokenizer_init,
            seed=seed,
            pipeline_depth=pipeline_depth,
            max_stall_ms=max_stall_ms,
            enforce_eager=enforce_eager,
            step_wait=step_wait,
            override_generation_config=override_generation_config,
            task=task,
        )
        self._engine = open_engine(config)
        self._ids = itertools.count()
        self._closed = False
        self._stepping = threading.Lock()
        info = self._engine.model_info
        self._tokenizer = Tokenizer.from_json(info.tokenizer_json) if info.tokenizer_json is not None else None
        self._template: ChatTemplate | None = None
        if info.chat_template is not None and self._tokenizer is not None:
            control = control_tokens(self._tokenizer, info.chat_template, answer_format(info.chat_template))
            self._tokenizer.keep_typed(control)
            self._template = ChatTemplate(info.chat_template, info.special_tokens, control)

    @property
    def model_info(self) -> ModelInfo:
        """Facts about the model and the resolved settings."""
        return self._engine.model_info

    def stats(self) -> EngineStats:
        """The engine's counters now."""
        return self._engine.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete each prompt: a text, token ids, or `{"prompt_token_ids": [...]}`. One result a prompt, in order.

        `sampling_params` is one object for all or one a prompt; None takes the model's own defaults. Raises
        `ValueError` for a prompt or parameter that the model cannot take; nothing of the call is generated then.
        """
        self._check_open()
        texts_and_ids = [self._to_ids(prompt) for prompt in _as_list(prompts)]
        params = self._params_for(len(texts_and_ids), sampling_params)
        collectors: dict[int, Collector] = {}
        with self._one_call_at_a_time():
            try:
                for (text, ids), wanted in zip(texts_and_ids, params, strict=True):
                    request_id = next(self._ids)
                    self._engine.submit(Submit(request_id, ids, wanted))
                    collectors[request_id] = Collector(text, ids, wanted, self._tokenizer)
                self._run(collectors, use_tqdm)
            except BaseException:
                # A refused prompt, Ctrl+C or a failed step: leave nothing of this call behind in the engine.
                self._abandon(collectors)
                raise
        return [collector.result for collector in collectors.values()]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered with the model's chat template.

        Raises `ValueError` when the model has no template, `TemplateError` when the template refuses the messages.
        """
        self._check_open()
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [
            self._render(
                conversation,  # type: ignore[arg-type]
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                extra=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm)

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Generator[str, None, None]:
        """Answer one conversation piece by piece; ending the iteration early ends the answer. Raises as `chat` does."""
        self._check_open()
        prompt = self._render(messages, add_generation_prompt=True, continue_final_message=False, extra=None)
        (params,) = self._params_for(1, sampling_params)
        request_id, ids = next(self._ids), prompt["prompt_token_ids"]
        with self._one_call_at_a_time():
            self._engine.submit(Submit(request_id, ids, params))
            collector = Collector(prompt["prompt"], ids, params, self._tokenizer)
            shown = 0
            try:
                while not collector.finished:
                    for event in self._step():
                        if event.request_id == request_id and collector.push(event):
                            self._engine.abort(Abort(request_id, event.index))
                    text = collector.result.outputs[0].text
                    if len(text) > shown:
                        yield text[shown:]
                        shown = len(text)
            finally:
                self._abandon([request_id])

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each text, one result a prompt, in order; arguments as of `/v1/embeddings`.

        Raises `ValueError` for a model that embeds nothing, or a prompt that it cannot take.
        """
        given = [
            (prompt, []) if isinstance(prompt, str) and self._tokenizer is not None else self._to_ids(prompt)
            for prompt in _as_list(prompts)
        ]
        return self._pooler(use_tqdm, truncate_prompt_tokens).embed(given, dimensions=dimensions, normalize=normalize)

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """How well the texts of each pair fit: one text with each of many, or two lists of one length.

        A cross-encoder reads each pair; of an embedding model it is the cosine. Raises `ValueError` as `embed` does.
        """
        return self._pooler(use_tqdm, truncate_prompt_tokens).score(text_1, text_2)

    def shutdown(self) -> None:
        """Release the model; the object cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    close = shutdown

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this LLM was shut down; create a new one")

    @contextmanager
    def _one_call_at_a_time(self) -> Iterator[None]:
        # Whoever steps the engine takes the events of all requests: two callers would lose each other's.
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(
                "this LLM is in the middle of another call, perhaps a stream_chat() that was not read to its end; "
                "finish or close() that one first"
            )
        try:
            yield
        finally:
            self._stepping.release()

    def _pooler(self, use_tqdm: bool, truncate_prompt_tokens: int | None) -> OfflinePooler:
        self._check_open()
        vectors = partial(self._vectors, use_tqdm=use_tqdm)
        return OfflinePooler(self.model_info, self._tokenizer, vectors, truncate_prompt_tokens=truncate_prompt_tokens)

    def _vectors(
        self,
        texts: Sequence[PooledText],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        use_tqdm: bool,
    ) -> list[Vector]:
        assert isinstance(self._engine, PoolingEngine), "the pooler has looked at the model's task"
        request = Pool(next(self._ids), texts, dimensions, normalize)
        with self._one_call_at_a_time():
            self._engine.pool(request)
            try:
                return run_pool(request, self._step, use_tqdm=use_tqdm)
            finally:
                self._abandon([request.request_id])

    def _render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        extra: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        if self._template is None or self._tokenizer is None:
            raise ValueError(
                f"the model {self.model_info.model} has no chat template, so it cannot chat; use generate()"
            )
        text = self._template.render(
            [dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            extra=extra,
        )
        # The template writes the begin token itself where the model wants one.
        return {"prompt": text, "prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)}

    def _to_ids(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise ValueError("a text prompt needs a tokenizer, and this model has none loaded; pass token ids")
            return prompt, self._tokenizer.encode(prompt)
        if not isinstance(prompt, Mapping):
            return None, _plain_ids(prompt)
        if "prompt_token_ids" in prompt:
            return prompt.get("prompt"), _plain_ids(prompt["prompt_token_ids"])
        if "prompt" in prompt:
            return self._to_ids(prompt["prompt"])
        raise ValueError(f"a prompt dict needs 'prompt' or 'prompt_token_ids', got the keys {sorted(prompt)}")

    def _params_for(
        self, num_prompts: int, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if params is None:
            params = SamplingParams(**self.model_info.default_sampling)  # type: ignore[arg-type]
        each = [params] * num_prompts if isinstance(params, SamplingParams) else list(params)
        if len(each) != num_prompts:
            raise ValueError(f"{num_prompts} prompts but {len(each)} sampling_params; give one object, or one a prompt")
        if self._tokenizer is None:
            for wanted in each:
                if wanted.stop or wanted.bad_words:
                    raise ValueError("stop strings and bad_words need a tokenizer, and this model has none loaded")
            return each
        tokenizer = self._tokenizer
        return [resolve_bad_words(wanted, tokenizer) for wanted in each]

    def _run(self, collectors: Mapping[int, Collector], use_tqdm: bool) -> None:
        unfinished = set(collectors)
        # Windows programs without a console have no stderr.
        with tqdm(total=len(collectors), desc="requests", disable=not use_tqdm or sys.stderr is None) as bar:
            while unfinished:
                for event in self._step():
                    collector = collectors.get(event.request_id)
                    if collector is None:
                        continue
                    if collector.push(event):
                        self._engine.abort(Abort(event.request_id, event.index))
                    if collector.finished and event.request_id in unfinished:
                        unfinished.remove(event.request_id)
                        bar.update()

    def _step(self) -> list[TokenEvent]:
        with deferred_interrupts():
            return self._engine.step()

    def _abandon(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            self._engine.abort(Abort(request_id))
        while self._engine.has_work():
            self._step()


def _plain_ids(token_ids: Sequence[int]) -> list[int]:
    # Array libraries have integers of their own; what has no exact integer value is refused. Bytes iterate as integers,
    # but are text that was not decoded.
    if isinstance(token_ids, bytes | bytearray | memoryview):
        raise TypeError(f"a prompt is a text or token ids, not {type(token_ids).__name__}; decode it to a text first")
    return [operator.index(token_id) for token_id in token_ids]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, bytes, Mapping)) or (len(prompts) and _is_integer(prompts[0])):
        return [cast(Prompt, prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _is_integer(value: object) -> bool:
    # An array of one integer has an index too, but is a prompt of one token.
    if getattr(value, "ndim", 0):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
