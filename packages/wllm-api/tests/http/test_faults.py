"""Our own faults: told as such, found again by the request's id, and never with a piece of the request."""

from typing import Any

import pytest

from wllm_api.testing import sse_data

SECRET = "the secret of the request"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_tokens", [0, 2])
def test_fault(
    start_server: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
    after_tokens: int,
) -> None:
    from wllm_api.text import OutputText

    push = OutputText.push

    def failing(self: OutputText, event: Any) -> Any:
        if self.num_tokens >= after_tokens:
            raise RuntimeError(SECRET)
        return push(self, event)

    with start_server(step_s=0.01) as client:
        monkeypatch.setattr(OutputText, "push", failing)
        body = {"prompt": SECRET, "stream": stream}
        answer = client.post("/v1/completions", json=body, headers={"X-Request-Id": "my-id"})
        if stream and after_tokens:
            assert answer.status_code == 200
            error: Any = [*sse_data(answer.iter_lines())][-1]
        else:
            assert answer.status_code == 500
            error = answer.json()
        assert error["error"]["type"] == "server_error"
        assert "my-id" in error["error"]["message"]
        monkeypatch.undo()
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
        assert not client.app.state.serving.running
    assert "request my-id failed: RuntimeError" in caplog.text
    assert "generation.py" in caplog.text
    assert "secret" not in caplog.text
