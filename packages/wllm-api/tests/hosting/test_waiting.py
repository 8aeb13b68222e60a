"""Requests, sleepers and probes while models load, leave, fail and the server ends: all are answered, and truly."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from models_client import ModelsClient, StartModels

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.hosting import residency as residency_module
from wllm_api.server import ApiServer
from wllm_api.settings import Limits
from wllm_api.sockets import bind_sockets
from wllm_api.testing import wait_until

LONG = {"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True}
MESSAGES = [{"role": "user", "content": "Hi"}]


@contextmanager
def in_use(client: ModelsClient, name: str) -> Iterator[None]:
    """An answer that does not end by itself."""
    with client.stream("POST", "/v1/completions", json={"model": name, "stream": True, **LONG}) as answer:
        lines = answer.iter_lines()  # kept: without a reader the answer ends
        assert next(lines)
        yield


class Asking(threading.Thread):
    """A request in a thread of its own; `answer` is what came."""

    def __init__(self, client: ModelsClient, path: str, body: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__()
        self._call = lambda: httpx.post(f"{client.base_url}{path}", json=body, **{"timeout": 30, **options})
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.answer = self._call()

    def code(self) -> str:
        """The code of the refusal that came in the end."""
        self.join()
        assert self.answer is not None
        return str(self.answer.json()["error"]["code"])


def test_until_the_first_is_loaded_all_are_told_that_it_loads(serve_models: StartModels) -> None:
    with serve_models({"a": {"load_s": 60.0}, "b": {}}, ready=False) as client:
        refused = [client.complete("a"), client.complete("b"), client.get("/health")]
        refused += [client.post("/wake_up", params={"model": name}) for name in "ab"]
        assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [(503, "model_loading")] * 5
        assert "shutting down" not in "".join(one.text for one in refused)


def test_what_is_refused_while_the_first_loads_wakes_nothing(serve_models: StartModels) -> None:
    with serve_models({"a": {"load_s": 1.0}, "b": {}}, ready=False) as client:
        assert client.post("/wake_up", params={"model": "b"}).status_code == 503
        wait_until(lambda: client.get("/health").status_code == 200)
        assert client.complete("a").status_code == 200
        assert client.engines["b"].info is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES}),
        ("/v1/responses/input_tokens", {"input": "Hi"}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/api/generate", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/v1/rerank", {"query": "Hi", "documents": ["Ho"]}),
    ],
)
def test_who_goes_away_waits_for_no_model(serve_models: StartModels, path: str, body: dict[str, Any]) -> None:
    with serve_models({"a": {"step_s": 0.01}, "b": {}}) as client, in_use(client, "a"):
        with pytest.raises(httpx.ReadTimeout):
            client.post(path, json={"model": "b", **body}, timeout=0.3)
        wait_until(lambda: client.serving.residency.num_waiting == 0, 5)


def test_who_goes_away_does_not_wait_for_a_model_that_leaves(serve_models: StartModels) -> None:
    with serve_models({"a": {"step_s": 0.01}, "b": {}}) as client:
        with in_use(client, "a"):
            second = Asking(client, "/v1/completions", {"model": "b", "prompt": "Hi"})
            wait_until(lambda: client.serving.residency.num_waiting == 1)
            with pytest.raises(httpx.ReadTimeout):
                client.complete("a", timeout_s=0.3)
            wait_until(lambda: client.serving.residency.num_waiting == 1, 5)
        second.join()
        assert second.answer is not None and second.answer.status_code == 200
        assert client.loaded() == "b"


@pytest.mark.parametrize("why", ["it loads", "it leaves"])
def test_no_more_wait_for_a_model_than_may_wait(serve_models: StartModels, why: str) -> None:
    models: dict[str, dict[str, Any]] = {"a": {"step_s": 0.01}, "b": {"load_s": 60.0}}
    with serve_models(models, max_loaded=1 + (why == "it loads"), limits=Limits(max_waiting=2)) as client:
        with in_use(client, "a"):
            waiting = [Asking(client, "/v1/completions", {"model": "b", "prompt": "Hi"}) for _ in range(2)]
            wait_until(lambda: client.serving.residency.num_waiting == 2)
            refused = client.complete("b" if why == "it loads" else "a", timeout_s=5)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
            client.serving.residency.refuse_waiting()
            assert [one.code() for one in waiting] == ["shutting_down"] * 2


def test_who_sends_to_sleep_is_told_when_it_was_woken_instead(serve_models: StartModels) -> None:
    with serve_models({"a": {"step_s": 0.01}}) as client, in_use(client, "a"):
        sleeper = Asking(client, "/sleep")
        wait_until(lambda: client.serving.models[0].is_leaving)
        assert client.post("/wake_up", timeout=5).status_code == 200
        assert sleeper.code() == "model_woken"
        assert sleeper.answer is not None and sleeper.answer.status_code == 409
        assert client.complete("a").status_code == 200


@pytest.mark.parametrize("state", ["loading", "first load"])
def test_the_end_of_the_server_is_not_held_up_by_who_sends_to_sleep(serve_models: StartModels, state: str) -> None:
    models: dict[str, dict[str, Any]] = {"a": {"load_s": 60.0 * (state == "first load")}, "b": {"load_s": 60.0}}
    limits = Limits(shutdown_grace_s=0.2)
    with serve_models(models, max_loaded=2, ready=state == "loading", limits=limits) as client:
        if state == "loading":
            Asking(client, "/v1/completions", {"model": "b", "prompt": "Hi"})
            wait_until(lambda: client.engines["b"].pid is not None)
        sleeper = Asking(client, "/sleep")
        wait_until(lambda: client.serving.models[state == "loading"].is_leaving)
    assert sleeper.code() == "shutting_down"


def test_probes_see_a_server_that_takes_requests(serve_models: StartModels, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_models({"a": {"step_s": 0.01}}) as client:
        model = client.serving.models[0]

        def health() -> int:
            return client.get("/health").status_code

        with in_use(client, "a"):
            client.serving.residency.send_to_sleep(model)
            assert (model.is_leaving, health()) == (True, 200)
            assert client.get("/api/ps").json()["models"] == [], "it takes no more requests"
        wait_until(lambda: client.loaded() == "")
        assert health() == 200
        client.engines["a"]._options = {"load_s": 1.0}
        waking = Asking(client, "/wake_up")
        wait_until(lambda: client.engines["a"].state == "loading")
        assert health() == 200, "a request waits for the model and is served"
        waking.join()
        client.post("/sleep")
        client.engines["a"]._options = {"load_error": "no memory"}
        monkeypatch.setattr(residency_module, "RETRY_S", 1.5)
        assert client.complete("a").json()["error"]["code"] == "model_load_failed"
        refused = client.get("/health")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_failed")
        client.engines["a"]._options = {}
        wait_until(lambda: health() == 200, 5)
        assert client.complete("a").status_code == 200


def test_models_that_were_given_up_are_offered_again_without_a_request(
    serve_models: StartModels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(residency_module, "RETRY_S", 1.5)
    with serve_models({"a": {"crash_after": 1}, "b": {"crash_after": 1}}, max_loaded=2) as client:
        for name, engine in client.engines.items():
            engine._max_crashes = 1
            assert client.complete(name).json()["error"]["code"] == "engine_died"
        wait_until(lambda: client.get("/health").status_code == 503, 1)
        assert "the model a is not loaded any more: The engine process died" in caplog.text
        wait_until(lambda: client.get("/health").status_code == 200, 5)
        assert client.loaded() == ""


def test_waking_a_model_that_cannot_be_loaded_costs_no_other_its_place(serve_models: StartModels) -> None:
    with serve_models({"a": {}, "b": {"load_error": "no weights"}}) as client:
        for _ in range(3):
            assert client.post("/wake_up", params={"model": "b"}).json()["error"]["code"] == "model_load_failed"
            assert client.complete("a").status_code == 200
        loads = client.get("/metrics").text
        assert 'wllm:model_loads_total{model_name="a"} 2.0' in loads, "the first try took its place, no other did"


# A client that comes when the server closes leaves asyncio on Windows with a socket for the next, which nobody closes.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_server_with_one_model_ends_when_that_is_given_up_also_under_requests() -> None:
    engine = EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {"crash_after": 1}, max_crashes=1)
    app = create_app([HostedModel(engine, ["a"])])
    sockets = bind_sockets("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/v1/completions"
    codes: list[int] = []
    server = ApiServer(app)
    serving = threading.Thread(target=lambda: codes.append(server.run_until_end(sockets)))
    serving.start()
    try:
        wait_until(lambda: app.state.serving.ready)
        until = threading.Event()

        def ask() -> None:
            with httpx.Client(timeout=5) as client:
                while not until.is_set():
                    try:
                        client.post(url, json={"model": "a", "prompt": "Hi"})
                    except httpx.TransportError:
                        return

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for one in asking:
            one.start()
        try:
            wait_until(lambda: not serving.is_alive(), 15)
        finally:
            until.set()
            for one in asking:
                one.join()
    finally:
        server.should_exit = True
        serving.join()
    assert codes == [1]
