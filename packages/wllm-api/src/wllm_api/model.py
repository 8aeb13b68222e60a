"""The text side of the served model: its tokenizer, its chat template, its limits.

Built once from the engine's `ModelInfo`, used by every request; long texts are handled in a worker thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from wllm_api.control_tokens import control_tokens
from wllm_api.errors import InvalidText, TemplateError
from wllm_api.grammars import GrammarChecker
from wllm_api.http_errors import ContextLengthExceeded, InvalidRequest, Unsupported
from wllm_api.settings import Parsers
from wllm_api.text import ChatTemplate, Infill, PromptText, Tokenizer
from wllm_api.threads import LONG_TEXT, in_thread
from wllm_api.tools import answer_format, shows_tools
from wllm_sched.messages import ModelInfo, Task

logger = logging.getLogger(__name__)

DEFAULT_PARSERS = Parsers()
# The routes that take token ids; a pair needs its tokenizer, so for scores these are the nearest.
_TAKES_IDS: dict[Task, str] = {"generate": "/v1/completions", "embed": "/v1/embeddings", "score": "a model that embeds"}
# Of a text with more characters, and more for each token of the context, a beginning is tokenised first.
READ_CHARS = 1_000_000
CHARS_PER_TOKEN = 8
# How many tokens more a beginning may have than the same words within the whole: its last word may be cut.
EDGE_TOKENS = 16


class ServedModel:
    """One loaded model; `template` is None when the model has none that works, and `template_error` says why.

    A model loaded without a tokenizer takes token ids only, and every text it gives is empty.
    """

    def __init__(self, info: ModelInfo, parsers: Parsers = DEFAULT_PARSERS) -> None:
        self.info = info
        self.format = answer_format(info.chat_template, tools=parsers.tools, reasoning=parsers.reasoning)
        self.has_tokenizer = info.tokenizer_json is not None
        self.tokenizer = Tokenizer.from_json(info.tokenizer_json) if info.tokenizer_json else Tokenizer.empty()
        self.infill = Infill.of(self.tokenizer)
        self.grammars = GrammarChecker(info.tokenizer_json or "")
        self.template: ChatTemplate | None = None
        self.template_error = "it has no chat template"
        if info.chat_template is not None:
            control = control_tokens(self.tokenizer, info.chat_template, self.format)
            self.tokenizer.keep_typed(control)
            try:
                self.template = ChatTemplate(info.chat_template, info.special_tokens, control)
            except TemplateError as error:
                self.template_error = f"its chat template does not work: {str(error).removesuffix('.')}"
                logger.warning("chat is not available for this model: %s", self.template_error)

    @property
    def knows_tools(self) -> bool:
        """Whether the chat template can show tool calls."""
        return "tool_calls" in (self.info.chat_template or "")

    @property
    def asks_for_null(self) -> bool:
        """Whether the chat template looks for messages whose content is null."""
        return self.template is not None and self.template.asks_for_null

    @property
    def shows_tools(self) -> bool:
        """Whether the chat template can show the tools on offer."""
        return shows_tools(self.info.chat_template)

    async def encode(self, text: str, *, add_special_tokens: bool, param: str, to_fit: bool = False) -> list[int]:
        """Token ids of `text`; an empty result becomes the begin (or else an end) token, since logits need a token.

        `to_fit`: of a text that is far too long for the context, those of a beginning that is too long as well will do.
        """
        self.require_tokenizer(param)
        try:
            ids = await in_thread(
                len(text) > LONG_TEXT or (isinstance(text, PromptText) and bool(text.typed)),
                lambda: self.tokenizer.encode(
                    self.beginning(text) if to_fit else text, add_special_tokens=add_special_tokens
                ),
            )
        except InvalidText as error:
            raise InvalidRequest(str(error), param=param) from None
        if ids:
            return ids
        starts = [self.info.bos_token_id, *self.info.eos_token_ids]
        start = next((token_id for token_id in starts if token_id is not None), None)
        if start is None:
            raise InvalidRequest(f"'{param}' is empty, and this model has no begin token. Send some text.", param=param)
        return [start]

    def beginning(self, text: str) -> str:
        """The text, or a beginning of it that has more tokens than the context; raises `InvalidText`."""
        size = max(READ_CHARS, self.info.max_model_len * CHARS_PER_TOKEN)
        while size < len(text):
            ids = self.tokenizer.encode(text[:size], add_special_tokens=False)
            if len(ids) > self.info.max_model_len + EDGE_TOKENS:
                return text[:size]
            size *= 2
        return text

    async def fill_in(self, before: str | list[int], after: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of the prompt whose answer belongs between `before` and `after`; raises `Unsupported`."""
        infill = self.infill
        if infill is None:
            raise Unsupported(
                "'suffix' cannot be used: this model's tokenizer has no tokens for filling in the middle of a text. "
                "Leave it out, or serve a code model that has them.",
                param="suffix",
            )
        return await in_thread(
            len(before) + len(after) > LONG_TEXT,
            lambda: infill.prompt(
                self.beginning(before) if isinstance(before, str) else before,
                self.beginning(after),
                add_special_tokens=add_special_tokens,
            ),
        )

    async def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        extra: Mapping[str, object],
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str:
        """The prompt text of a conversation; raises `InvalidRequest` with the template's own words."""
        template = self.template
        if template is None:
            raise InvalidRequest(
                f"This model cannot chat: {self.template_error}. Use /v1/completions.", param="messages"
            )
        size = sum(len(str(message.get("content", ""))) for message in messages)
        try:
            return await in_thread(
                size > LONG_TEXT,
                lambda: template.render(
                    messages,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    extra=extra,
                ),
            )
        except TemplateError as error:
            raise InvalidRequest(str(error), param="messages") from None

    def require_tokenizer(self, param: str) -> None:
        """Raise `InvalidRequest` for a field that means text when the model was loaded without a tokenizer."""
        if not self.has_tokenizer:
            raise InvalidRequest(
                f"This model was loaded without a tokenizer, so it cannot use the text in '{param}'. Send token ids to "
                f"{_TAKES_IDS[self.info.task]}, or start the server without --skip-tokenizer-init.",
                param=param,
            )

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raise `InvalidRequest` for an id outside the model's vocabulary."""
        # By the extremes, which C finds fast: there may be millions.
        extremes = (min(token_ids), max(token_ids)) if token_ids else ()
        wrong = [token_id for token_id in extremes if not 0 <= token_id < self.info.vocab_size]
        if wrong:
            raise InvalidRequest(
                f"'{param}' holds the token id {min(wrong, key=token_ids.index)}; this model's ids go from 0 to "
                f"{self.info.vocab_size - 1}.",
                param=param,
            )

    def room(self, num_prompt_tokens: int, max_tokens: int | None, param: str) -> int:
        """How many tokens an answer may have; None asks for all that fit. Raises `ContextLengthExceeded`."""
        context = self.info.max_model_len
        left = context - num_prompt_tokens
        wanted = max_tokens if max_tokens is not None else max(left, 1)
        if wanted <= left:
            return wanted
        if left < 1:
            asked = f"your {param} resulted in {num_prompt_tokens} tokens or more"
        else:
            asked = (
                f"you requested {num_prompt_tokens + wanted} tokens ({num_prompt_tokens} in the {param}, "
                f"{wanted} in the completion)"
            )
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens. However, {asked}. "
            f"Please reduce the length of the {param}{' or the completion' if left >= 1 else ''}.",
            param=param,
        )
