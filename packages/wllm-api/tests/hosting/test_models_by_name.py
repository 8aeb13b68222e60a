"""Several models in one server, as clients see them: loaded by name, unloaded when idle, asleep and woken."""

import contextlib
import os
import signal
import threading
import time

import httpx
import ollama
import psutil
import pytest
from models_client import StartModels

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.http_errors import RepeatedModelName
from wllm_api.settings import Limits
from wllm_api.testing import sse_data, wait_until


def test_the_second_is_loaded_by_name_and_the_idle_first_goes(serve_models: StartModels) -> None:
    models = {"a": {"reply": "I am a"}, "b": {"reply": "I am b"}}
    with serve_models(models, keep_alive_s=3600.0, max_loaded=2) as client:
        assert client.loaded() == "a"
        pid = client.engines["a"].pid
        answer = client.complete("b", max_tokens=20)
        assert (answer.status_code, answer.json()["choices"][0]["text"], answer.json()["model"]) == (200, "I am b", "b")
        assert client.loaded() == "ab"
        client.serving.hosted("a").stay_s = 0.5  # only now: however long the second takes to load
        wait_until(lambda: client.complete("b").status_code == 200 and client.loaded() == "b")
        assert not psutil.pid_exists(pid or 0)
        assert client.get("/health").status_code == 200
        client.serving.hosted("b").keep_alive_s = 0.5
        assert client.complete("b").status_code == 200
        wait_until(lambda: client.loaded() == "")
        assert client.get("/health").status_code == 200
        assert client.complete("a", max_tokens=20).json()["choices"][0]["text"] == "I am a"
        text = client.get("/metrics").text
        assert 'wllm:model_loads_total{model_name="a"} 2.0' in text
        assert 'wllm:model_loaded{model_name="a"} 1.0' in text
        assert 'wllm:request_success_total{finished_reason="stop",model_name="b"} 1.0' in text
        assert (
            'wllm:http_requests_total{handler="/v1/completions",method="POST",model_name="a",status="200"} 1.0' in text
        )


def test_one_place_is_given_on_when_the_answers_of_the_first_have_ended(serve_models: StartModels) -> None:
    with serve_models({"a": {"step_s": 0.01}, "b": {}}) as client:
        asked = {"model": "a", "prompt": "Hi", "max_tokens": 100, "ignore_eos": True, "stream": True}
        answers: list[httpx.Response] = []
        with client.stream("POST", "/v1/completions", json=asked) as answer:
            events = sse_data(answer.iter_lines())
            assert next(events)
            waiting = threading.Thread(target=lambda: answers.append(client.complete("b")))
            waiting.start()
            time.sleep(0.3)
            assert (client.loaded(), answers) == ("a", [])
            assert list(events)[-1] is None, "the answer that runs is whole"
        waiting.join()
        assert answers[0].status_code == 200
        assert client.loaded() == "b"


def test_many_ask_for_a_model_that_loads_and_all_are_served(serve_models: StartModels) -> None:
    with serve_models({"a": {}, "b": {"load_s": 0.5}}) as client:
        answers: list[httpx.Response] = []
        asking = [threading.Thread(target=lambda: answers.append(client.complete("b"))) for _ in range(8)]
        for one in asking:
            one.start()
        for one in asking:
            one.join()
        assert [answer.status_code for answer in answers] == [200] * 8
        assert client.engines["b"].num_restarts == 0


def test_who_cannot_wait_is_told_when_to_come_again(serve_models: StartModels) -> None:
    limits = Limits(max_load_wait_s=1.5, max_waiting=1)
    with serve_models({"a": {"step_s": 0.01}, "b": {}}, limits=limits) as client:
        asked = {"model": "a", "prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=asked) as answer:
            lines = answer.iter_lines()  # kept: without a reader the answer ends
            assert next(lines)
            late: list[httpx.Response] = []
            waiting = threading.Thread(target=lambda: late.append(client.complete("b")))
            waiting.start()
            wait_until(lambda: client.serving.residency.num_waiting == 1)
            full = client.complete("b")
            waiting.join()
        for refused, code in ((late[0], "model_loading"), (full, "server_is_overloaded")):
            assert refused.status_code == 503, refused.text
            assert refused.json()["error"]["code"] == code
            assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_a_crash_while_loading_hurts_that_model_only(
    serve_models: StartModels, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"load_error": "no weights"} if how == "raises" else {"load_s": 60.0}
    with serve_models({"a": {"step_s": 0.005}, "b": options}, max_loaded=2) as client:
        asked = {"model": "a", "prompt": "Hi", "max_tokens": 600, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=asked) as answer:
            events = sse_data(answer.iter_lines())
            assert next(events)
            failed: list[httpx.Response] = []
            asking = threading.Thread(target=lambda: failed.append(client.complete("b")))
            asking.start()
            while how == "is killed" and not failed:
                _kill(client.engines["b"])
                time.sleep(0.05)
            asking.join()
            error = failed[0].json()["error"]
            assert (failed[0].status_code, error["code"]) == (500, "model_load_failed")
            assert failed[0].headers["x-should-retry"] == "false"
            assert ("no weights" if how == "raises" else "engine process died") in error["message"]
            assert "'b'" in error["message"]
            assert list(events)[-1] is None
        assert client.complete("a").status_code == 200
        assert client.get("/health").status_code == 200
        monkeypatch.setattr(client.engines["b"], "start", _tried_again)
        soon = client.complete("b")
        assert soon.status_code == 500 and "tried again at once" not in soon.text


async def _tried_again() -> None:
    raise AssertionError("tried again at once")


def _kill(engine: EngineProcess) -> None:
    if engine.pid is not None:
        with contextlib.suppress(OSError):
            os.kill(engine.pid, signal.SIGTERM)


def test_a_model_that_crashes_too_often_leaves_the_others(serve_models: StartModels) -> None:
    with serve_models({"a": {}, "b": {"crash_after": 1}}, max_loaded=2) as client:
        for _ in range(3):
            wait_until(lambda: client.engines["b"].state in ("ready", "stopped"))
            assert client.complete("b").json()["error"]["code"] == "engine_died"
        wait_until(lambda: client.engines["b"].state == "failed")
        answer = client.complete("b")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_load_failed")
        assert client.complete("a").status_code == 200


def test_a_client_that_goes_while_it_waits_is_forgotten(serve_models: StartModels) -> None:
    with serve_models({"a": {"step_s": 0.01}, "b": {}}) as client:
        asked = {"model": "a", "prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=asked) as answer:
            lines = answer.iter_lines()  # kept: without a reader the answer ends
            assert next(lines)
            with pytest.raises(httpx.ReadTimeout):
                client.complete("b", timeout_s=0.5)
            wait_until(lambda: client.serving.residency.num_waiting == 0)
            assert client.complete("a").status_code == 200, "the first takes requests again"
        assert client.loaded() == "a"


def test_the_end_of_the_server_refuses_who_waits(serve_models: StartModels) -> None:
    refused: list[httpx.Response] = []
    with serve_models({"a": {}, "b": {"load_s": 60.0}}, limits=Limits(shutdown_grace_s=0.3)) as client:
        url, asked = f"{client.base_url}/v1/completions", {"model": "b", "prompt": "Hi"}
        # Not through the client, which is closed before the server ends.
        waiting = threading.Thread(target=lambda: refused.append(httpx.post(url, json=asked, timeout=30)))
        waiting.start()
        wait_until(lambda: client.serving.residency.num_waiting == 1)
        started = time.perf_counter()
    assert time.perf_counter() - started < 5
    waiting.join()
    assert (refused[0].status_code, refused[0].json()["error"]["code"]) == (503, "shutting_down")


def test_sleep_gives_the_memory_back_and_a_request_wakes(serve_models: StartModels) -> None:
    with serve_models({"a": {}}) as client:
        pid = client.engines["a"].pid
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}
        assert client.post("/sleep").status_code == 200
        assert not psutil.pid_exists(pid or 0)
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert client.get("/health").status_code == 200
        assert client.post("/wake_up").status_code == 200
        assert client.loaded() == "a"
        assert client.post("/sleep", params={"model": "a", "level": 2}).status_code == 200
        assert client.complete("a").status_code == 200
        refused = client.post("/sleep", params={"level": 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "level")
        for path, name, value in (
            ("/sleep", "level", "deep"),
            ("/sleep", "mode", "abort"),
            ("/wake_up", "tags", "weights"),
        ):
            refused = client.post(path, params={name: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        assert client.post("/sleep", params={"mode": "wait"}).status_code == 200
        assert client.complete("a").status_code == 200
        for call in (client.post("/sleep", params={"model": "x"}), client.post("/wake_up", params={"model": "x"})):
            assert call.status_code == 404
        assert client.loaded() == "a"


def test_models_of_different_tasks_side_by_side(serve_models: StartModels) -> None:
    with serve_models({"writer": {}, "embedder": {"task": "embed", "max_model_len": 64}}, max_loaded=2) as client:
        vector = client.post("/v1/embeddings", json={"model": "embedder", "input": "Hi"})
        assert vector.status_code == 200
        assert client.complete("writer").status_code == 200
        wrong = client.complete("embedder")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "unsupported_task")
        listed = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
        assert (listed["writer"]["task"], listed["embedder"]["task"]) == ("generate", "embed")
        assert [listed[name]["root"] for name in listed] == ["writer", "embedder"]


def test_a_request_for_the_wrong_task_does_not_load_a_known_model(serve_models: StartModels) -> None:
    with serve_models({"writer": {}, "embedder": {"task": "embed", "max_model_len": 64}}) as client:
        assert client.post("/v1/embeddings", json={"model": "embedder", "input": "Hi"}).status_code == 200
        assert client.loaded() == "embedder"
        assert client.post("/v1/embeddings", json={"model": "writer", "input": "Hi"}).status_code == 400
        assert client.loaded() == "embedder"


def test_ollamas_keep_alive_unloads(serve_models: StartModels) -> None:
    with (
        serve_models({"a": {}, "b": {}}, keep_alive_s=3600.0) as client,
        contextlib.closing(ollama.Client(host=str(client.base_url))) as sdk,
    ):
        assert sdk.generate("a", "Hi", options={"num_predict": 3}, keep_alive="10m").done
        (running,) = sdk.ps().models
        assert running.model == "a:latest"
        assert running.expires_at is not None
        assert 500 < running.expires_at.timestamp() - time.time() <= 600
        assert sdk.generate("a", "Hi", options={"num_predict": 3}, keep_alive=0).done
        wait_until(lambda: client.loaded() == "")
        assert sdk.ps().models == []
        assert sdk.generate("b", "", keep_alive=-1).done_reason == "load"
        assert client.loaded() == "b"
        (running,) = sdk.ps().models
        assert running.expires_at is not None and running.expires_at.year == 9999
        assert sdk.chat("b", [], keep_alive=0).done_reason == "unload"
        wait_until(lambda: client.loaded() == "")
        assert {model.model for model in sdk.list().models} == {"a:latest", "b:latest"}
        assert client.complete("a").status_code == 200  # a request that says nothing has the server's own time
        assert 3500 < sdk.ps().models[0].expires_at.timestamp() - time.time() <= 3600


def test_ollamas_show_loads_nothing(serve_models: StartModels) -> None:
    with serve_models({"a": {}, "b": {}}) as client:
        assert client.post("/api/show", json={"model": "b"}).json()["capabilities"] == []
        assert "completion" in client.post("/api/show", json={"model": "a"}).json()["capabilities"]
        assert client.loaded() == "a"


def test_ollamas_latest_is_the_model_of_that_very_name_first(serve_models: StartModels) -> None:
    names = ["m", "m:latest", "m:8b", "org/m", "n:latest", "模型"]
    with (
        serve_models({name: {"reply": name} for name in names}) as client,
        contextlib.closing(ollama.Client(host=str(client.base_url))) as sdk,
    ):
        listed = {str(model.model) for model in sdk.list().models}
        assert listed == {"m", "m:latest", "m:8b", "org/m:latest", "n:latest", "模型:latest"}
        for asked, meant in (*((name, name) for name in names), ("n", "n:latest"), ("org/m:latest", "org/m")):
            assert sdk.generate(asked, "Hi", raw=True).response == meant
        for unknown in ("org", "m:8b:8b", ":latest", "M"):
            with pytest.raises(ollama.ResponseError, match="not found"):
                sdk.generate(unknown, "Hi")


def test_a_model_may_be_given_one_name_twice() -> None:
    model = HostedModel(EngineProcess("never:started", {}), ["m", "n", "m"])
    assert model.names == ("m", "n")
    create_app([model])


def test_two_models_of_one_name_are_refused() -> None:
    engines = [EngineProcess("never:started", {}) for _ in range(2)]
    with pytest.raises(RepeatedModelName, match="'m'"):
        create_app([HostedModel(engines[0], ["m"]), HostedModel(engines[1], ["n", "m"])])
