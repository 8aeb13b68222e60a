"""R34: a dead engine is seen at once, told to its clients, and replaced; or the server ends."""

import contextlib
import signal
import threading
from typing import Any

import httpx
import pytest

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.server import ApiServer
from wllm_api.sockets import bind_sockets
from wllm_api.testing import sse_data, wait_until

FACTORY = "wllm_api.engine.scripted:create_scripted_engine"
LONG = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True}


def kill(engine: Any) -> None:
    import os

    os.kill(engine.pid, signal.SIGTERM)


def test_killed_engine(start_server: Any) -> None:
    with start_server(step_s=0.01) as client:
        whole: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: whole.append(httpx.post(f"{client.base_url}/v1/completions", json=LONG))
        )
        asking.start()
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
            data = sse_data(answer.iter_lines())
            assert next(data)
            wait_until(lambda: len(client.app.state.serving.running) == 2)
            kill(client.engine)
            rest: list[Any] = list(data)
        error = rest[-1]["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_died")
        asking.join()
        assert whole[0].status_code == 500
        assert whole[0].json()["error"]["code"] == "engine_died"
        assert whole[0].headers["x-should-retry"] == "false"
        assert client.get("/health").status_code == 503
        refused = client.post("/v1/completions", json={"prompt": "Hi"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_restarting"
        assert int(refused.headers["retry-after"]) >= 1
        wait_until(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
        assert 'wllm:engine_restarts_total{model_name="scripted"} 1.0' in client.get("/metrics").text


def test_engine_that_raises_in_a_step(start_server: Any) -> None:
    with start_server(crash_after=5) as client:
        answer = client.post("/v1/completions", json=LONG)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_died"
        wait_until(lambda: client.get("/health").status_code == 200)


def test_loading(start_server: Any) -> None:
    with start_server(ready=False, load_s=1.0) as client:
        for answer in (client.get("/health"), client.post("/v1/completions", json={"prompt": "Hi"})):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "model_loading"
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] is None
        wait_until(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200


@pytest.mark.parametrize("options", [{"load_error": "no such model"}, {"crash_after": 1}])
def test_engine_that_fails_for_good_ends_the_server(options: dict[str, Any]) -> None:
    app = create_app([HostedModel(EngineProcess(FACTORY, options, max_crashes=1), ["scripted"])])
    sockets = bind_sockets("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    codes: list[int] = []
    serving = threading.Thread(target=lambda: codes.append(ApiServer(app).run_until_end(sockets)))
    serving.start()
    if "crash_after" in options:
        wait_until(lambda: app.state.serving.ready)
        with contextlib.suppress(httpx.TransportError):
            assert httpx.post(f"{url}/v1/completions", json={"prompt": "Hi"}).status_code == 500
    serving.join(30)
    assert codes == [1]


def test_shutdown_ends_streams_with_an_error(start_server: Any) -> None:
    from wllm_api.settings import Limits

    lines: list[Any] = []

    with start_server(limits=Limits(shutdown_grace_s=0.5), step_s=0.01) as client:

        def read() -> None:
            with httpx.stream("POST", f"{client.base_url}/v1/completions", json={**LONG, "stream": True}) as answer:
                lines.extend(sse_data(answer.iter_lines()))

        reading = threading.Thread(target=read)
        reading.start()
        wait_until(lambda: len(client.app.state.serving.running) == 1)
    reading.join()
    assert lines[-1] is not None
    assert lines[-1]["error"]["code"] == "shutting_down"
