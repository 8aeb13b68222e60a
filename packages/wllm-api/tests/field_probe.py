"""Tests of the tests: each field of a request has a case, whose check fails when the server does not see the field.

A server that ignored a field would do what this one does without it. So every case is sent twice, as it is and without
its field: its check must hold the first time and fail the second time. What a field does in the engine is tested with
the engine; here its check looks at what the engine was asked for.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

import httpx
import pytest
from server_client import ServerClient

from wllm_api.schemas.base import Body, Part
from wllm_api.testing import sse_data
from wllm_sched.sampling import SamplingParams

# Shows all that a request can tell a chat template.
TEMPLATE = (
    "{% for t in tools or [] %}tool {{ t | tojson }}\n{% endfor %}{{ reasoning_effort }} {{ enable_thinking }} "
    "{{ thinking_budget }} {{ mood }}\n"
    "{% for m in messages %}<|im_start|>{{ m.role }}|{{ m.name }}|{{ m.tool_call_id }}|{{ m.reasoning_content }}\n"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.id }} {{ c.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# </think> #}"
)
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>\n'
REPLY = f"<think>Well.</think>There it is.{CALL}{CALL}"
FIM_TOKENS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")

# A prompt, and what is asked of the engine for it.
Job = tuple[list[int], SamplingParams]
Check = Callable[["Seen"], object]
# (field, request, check): the field is a path, of names joined by points.
Case = tuple[str, dict[str, Any], Check]


class Refused(Exception):
    """The request got another answer than 200."""


class Seen:
    """What a client and the engine see of one request."""

    def __init__(self, answer: httpx.Response, jobs: list[Job], prompts: list[str]) -> None:
        self._answer = answer
        self._jobs = jobs
        self._prompts = prompts

    @property
    def status(self) -> int:
        """The answer's status."""
        return self._answer.status_code

    @property
    def refused(self) -> bool:
        """Whether the request got a 400."""
        return self.status == 400

    @property
    def ignored(self) -> str:
        """The fields that the server says it ignored."""
        return self._answer.headers.get("x-wllm-ignored", "")

    @property
    def params(self) -> SamplingParams:
        """What the engine was asked for, for the first prompt."""
        self._require_answer()
        return self._jobs[0][1]

    @property
    def forced(self) -> bool:
        """Whether the whole answer has to have a form."""
        grammar = self.params.grammar
        return grammar is not None and grammar.opening is None

    @property
    def ids(self) -> list[int]:
        """The first prompt as the engine got it."""
        self._require_answer()
        return list(self._jobs[0][0])

    @property
    def prompt(self) -> str:
        """The same as text."""
        self._require_answer()
        return self._prompts[0]

    @property
    def streams(self) -> bool:
        """Whether the answer comes in pieces."""
        self._require_answer()
        return not self._answer.headers["content-type"].startswith("application/json")

    @property
    def lines(self) -> list[Any]:
        """The objects of a stream of lines or events."""
        self._require_answer()
        lines = self._answer.text.splitlines()
        if self._answer.headers["content-type"] == "application/x-ndjson":
            return [json.loads(line) for line in lines]
        return [one for one in sse_data(line for line in lines if not line.startswith("event: ")) if one is not None]

    @property
    def body(self) -> Any:
        """The whole answer."""
        self._require_answer()
        return self._answer.json()

    @property
    def choice(self) -> Any:
        """The first choice of OpenAI's answers."""
        return self.body["choices"][0]

    @property
    def message(self) -> Any:
        """The first choice's message."""
        return self.choice["message"]

    @property
    def text(self) -> str:
        """The first choice's text."""
        choice = self.choice
        text: str = choice["text"] if "text" in choice else choice["message"]["content"]
        return text

    def _require_answer(self) -> None:
        if self._answer.status_code != 200:
            raise Refused(self._answer.text)


class Probe:
    """A server, and what reaches its engine."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._jobs: list[Job] = []
        submit = client.engine.submit

        def recorded(prompt_token_ids: Sequence[int], params: SamplingParams) -> object:
            self._jobs.append((list(prompt_token_ids), params))
            return submit(prompt_token_ids, params)

        client.engine.submit = recorded

    def post(self, path: str, body: Mapping[str, Any]) -> Seen:
        """What comes of a request."""
        self._jobs.clear()
        answer = self._client.post(path, json=body)
        jobs = list(self._jobs)
        prompts = [self._client.text_of(ids) for ids, _ in jobs]
        return Seen(answer, jobs, prompts)

    def get(self, path: str) -> httpx.Response:
        """The answer to a request without a body."""
        return self._client.get(path)

    def check(self, path: str, case: Case) -> None:
        """The case's check holds, and would not if the server ignored the field."""
        field, body, check = case
        assert check(self.post(path, body)), "the field does not do what it should"
        ignoring = self.post(path, without(body, field.split(".")))
        try:
            unnoticed = check(ignoring)
        except (Refused, LookupError, TypeError, AttributeError):
            return
        assert not unnoticed, f"'{field}' could be ignored, and nobody would notice"


def without(value: Any, path: list[str]) -> Any:
    """`value` without what lies at `path`, in every entry of its lists that has it."""
    if isinstance(value, list):
        return [without(one, path) for one in value]
    if not isinstance(value, dict):
        return value
    if len(path) == 1:
        return {name: one for name, one in value.items() if name != path[0]}
    return {name: without(one, path[1:]) if name == path[0] else one for name, one in value.items()}


def paths(schema: type[Part], before: str = "") -> set[str]:
    """The paths of all fields, those of the objects inside too."""
    found = set()
    for name, field in schema.model_fields.items():
        found.add(before + name)
        for part in parts(field.annotation):
            found |= paths(part, f"{before}{name}.")
    return found


def parts(annotation: Any) -> Iterator[type[Part]]:
    """The kinds of objects in a type."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for inner in get_args(annotation):
        yield from parts(inner)


def has_all(
    cases: Collection[Case], schema: type[Body], without_effect: Collection[str], *, inside: bool = True
) -> None:
    """Each field of the schema, and of the objects `inside`, has a case or is known to change nothing."""
    tested = {field for field, _, _ in cases}
    assert not tested & set(without_effect)
    assert tested | set(without_effect) == {path for path in paths(schema) if inside or "." not in path}
    for field, body, _ in cases:
        assert without(body, field.split(".")) != body, f"the case of '{field}' does not have it"


def each_of(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Run a test of a `case` for each of these, named by its field."""
    return pytest.mark.parametrize("case", cases, ids=[field for field, _, _ in cases])
