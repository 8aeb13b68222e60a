"""A model's chat template: messages to prompt text, as transformers renders it.

Templates come with model files, so they are untrusted: they run sandboxed, with counted iterations and bounded sizes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from wllm_api.errors import TemplateError
from wllm_api.text.limits import MAX_SOURCE, LimitError, Meter, check_size
from wllm_api.text.sandbox import Refused, TemplateEnvironment, active_meter
from wllm_api.text.typed_tokens import NO_CONTROL_TOKENS, ControlTokens, PromptText

# transformers marks the end of the message to be continued with this text, and cuts the prompt there.
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_NULL_CONTENT = re.compile(r"""content(?:['"]\])?\s+is\s+(?:not\s+)?none\b""", re.IGNORECASE)
# Template variables that a caller gives by arguments of their own.
OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})


@functools.cache
def _environment() -> TemplateEnvironment:
    return TemplateEnvironment()


def _plain(value: object) -> object:
    """`value` rebuilt from JSON's types, since any other object has methods that a template could call."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    raise TemplateError(
        f"A chat template takes texts, numbers, lists and dictionaries, not {type(value).__name__} ({value!r:.80}). "
        "Convert it first."
    )


def _plain_message(message: Mapping[str, object], *, keeps_null: bool) -> dict[str, object]:
    # Absent and null are the same to a client, but "None" would be printed by most templates.
    plain = {
        str(key): _plain(value)
        for key, value in message.items()
        if value is not None or (keeps_null and key == "content")
    }
    reasoning = next((plain[name] for name in _REASONING_NAMES if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


class ChatTemplate:
    """A compiled chat template; raises `TemplateError` when `source` cannot be parsed.

    Names of `control` tokens in messages, tools and variables are marked in the prompt as text. `asks_for_null`: it
    looks whether a content is null, which others would print as "None".
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], control: ControlTokens = NO_CONTROL_TOKENS
    ) -> None:
        if len(source) > MAX_SOURCE:
            raise TemplateError(
                f"The chat template has {len(source):,} characters, the limit is {MAX_SOURCE:,}. Use a smaller one."
            )
        self._source = source
        self.asks_for_null = _NULL_CONTENT.search(source) is not None
        self._control = control
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().compiled(source)
        except Exception as error:  # jinja2's errors, and the compiler's for code that is nested too deeply
            line = getattr(error, "lineno", None)
            where = "" if line is None else f" (line {line})"
            raise TemplateError(
                f"The model's chat template cannot be parsed: {type(error).__name__}: {error}{where}. "
                "Give the model a corrected chat_template."
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> PromptText:
        """The prompt for `messages`; `extra` are further template variables. Raises `TemplateError`."""
        try:
            chat = [_plain_message(message, keeps_null=self.asks_for_null) for message in messages]
            variables = {name: _plain(value) for name, value in (extra or {}).items()}
            shown_tools = None if tools is None else _plain(list(tools))
            mark = self._control.mark_for(chat, shown_tools, variables)
            if mark is not None:
                chat = [self._control.marked_message(message, mark) for message in chat]
                shown_tools = self._control.marked(shown_tools, mark)
                variables = {name: self._control.marked(value, mark) for name, value in variables.items()}
        except RecursionError:
            raise TemplateError(
                "The messages, tools or variables for the chat template are nested too deeply. Send flatter ones."
            ) from None
        reserved = OWN_VARIABLES.intersection(variables)
        if reserved:
            raise TemplateError(f"Template variables cannot be named {sorted(reserved)}. Use the request's own fields.")
        continued = ""
        if continue_final_message:
            if add_generation_prompt:
                raise TemplateError(
                    "continue_final_message and add_generation_prompt are both true, but a prompt either goes on with "
                    "the last message or begins a new one. Set one of them to false."
                )
            continued = self._mark_end(chat)
        variables = {
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": chat,
            "tools": shown_tools,
            "add_generation_prompt": add_generation_prompt,
        }
        prompt = self._run(variables)
        if continue_final_message:
            prompt = _cut_at_mark(prompt, continued)
        return PromptText(prompt) if mark is None else self._control.unmarked(prompt, mark)

    def _mark_end(self, chat: list[dict[str, object]]) -> str:
        content = chat[-1].get("content") if chat else None
        if isinstance(content, list):  # of parts: the last text is the one to continue
            holder = next((part for part in reversed(content) if isinstance(part, dict) and "text" in part), {})
            field = "text"
        else:
            holder, field = (chat[-1] if chat else {}), "content"
        text = holder.get(field)
        if not isinstance(text, str) or "content" not in self._source:
            raise TemplateError(
                "continue_final_message is true, but the last message has no content that this model's template shows. "
                "End the messages with the text to continue, or set continue_final_message to false."
            )
        holder[field] = text + _CONTINUE_HERE
        return text

    def _run(self, variables: Mapping[str, object]) -> str:
        token = active_meter.set(Meter())
        try:
            pieces, size = [], 0
            for piece in self._template.generate(variables):
                size += len(piece)
                check_size(size)
                pieces.append(piece)
        except Refused as error:
            raise TemplateError(str(error)) from error
        except LimitError as error:
            raise TemplateError(
                f"The model's chat template was stopped: {error}. Send fewer messages or correct the template."
            ) from error
        except Exception as error:  # a template can raise anything that Python can
            raise TemplateError(
                f"The model's chat template failed on these messages: {type(error).__name__}: {error}. "
                "Send messages of a form that the template knows."
            ) from error
        finally:
            active_meter.reset(token)
        return "".join(pieces)


def _cut_at_mark(prompt: str, continued: str) -> str:
    mark = _CONTINUE_HERE.strip()
    if continued.strip() not in prompt or mark not in prompt:
        raise TemplateError(
            "continue_final_message is true, but this model's template does not show the whole of the last message. "
            "Set continue_final_message to false."
        )
    end = prompt.rindex(mark)
    # A template that trims its messages has taken the blank off the mark: then what stands before it is trimmed too.
    return prompt[:end] if prompt.startswith(_CONTINUE_HERE, end) else prompt[:end].rstrip()
