"""One server with the scripted engine for all tests that do not break it, and a way to start others."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from server_client import ALPHABET, ServerClient

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.settings import Access, Limits
from wllm_api.testing import running_server

# A template that shows tools, and one that begins each answer with a thought; both know how Hermes writes calls.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<tool_call></tool_call>"
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}{{ ' ' + m.name if m.name else '' }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THOUGHT_TEMPLATE = TOOL_TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}{# </think> #}")
CALLS = "".join(
    f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>\n'
    for city in ("Paris", "Köln 🫠")
)

FACTORY = "wllm_api.engine.scripted:create_scripted_engine"
POOLER = "wllm_api.engine.scripted_pooler:create_scripted_pooler"


StartServer = Callable[..., AbstractContextManager[ServerClient]]


@contextmanager
def _started(
    access: Access | None = None, limits: Limits | None = None, *, ready: bool = True, **options: Any
) -> Iterator[ServerClient]:
    pools = options.get("task", "generate") != "generate"
    engine = EngineProcess(POOLER if pools else FACTORY, options)
    app = create_app([HostedModel(engine, ["scripted", "org/other-name"])], access=access, limits=limits)
    with running_server(app, ready=ready) as url, ServerClient(base_url=url, timeout=30) as client:
        client.engine, client.app = engine, app
        yield client


@pytest.fixture(scope="session")
def start_server() -> StartServer:
    """Start a server with these settings and options of the scripted engine: a context manager of its client."""
    return _started


@pytest.fixture(scope="session")
def embedder() -> Iterator[ServerClient]:
    """A client of a shared server whose scripted engine makes embeddings."""
    with _started(task="embed", max_model_len=64) as client:
        yield client


@pytest.fixture(scope="session")
def cross_encoder() -> Iterator[ServerClient]:
    """A client of a shared server whose scripted engine scores pairs."""
    with _started(task="score", max_model_len=64) as client:
        yield client


@pytest.fixture(scope="session")
def client() -> Iterator[ServerClient]:
    """A client of the shared server."""
    with _started() as client:
        yield client


@pytest.fixture(scope="session")
def alphabet() -> Iterator[ServerClient]:
    """A client of a server that always says `ALPHABET`."""
    with _started(reply=ALPHABET) as client:
        yield client


@pytest.fixture(scope="session")
def templates() -> dict[str, str]:
    """Chat templates by what they can do: show tools, or begin a thought too."""
    return {"tools": TOOL_TEMPLATE, "thoughts": THOUGHT_TEMPLATE}


@pytest.fixture(scope="session")
def thinker() -> Iterator[ServerClient]:
    """A server that always thinks "I must look.", says "One moment.", and asks for the weather in two towns."""
    reply = f"I must look.\n</think>\n\nOne moment.\n{CALLS}"
    with _started(chat_template=THOUGHT_TEMPLATE, reply=reply) as client:
        yield client


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[[ServerClient], list[Any]]:
    """A function: watch what a server's engine is given, as (prompt ids, parameters)."""

    def watch(client: ServerClient) -> list[Any]:
        seen: list[Any] = []
        submit = client.engine.submit

        def spy(token_ids: Any, params: Any) -> Any:
            seen.append((list(token_ids), params))
            return submit(token_ids, params)

        monkeypatch.setattr(client.engine, "submit", spy)
        return seen

    return watch
