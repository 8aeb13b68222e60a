"""Probes, metrics, models, routes that do not exist."""

import json
from types import SimpleNamespace
from typing import cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from wllm_api.client import EngineClient
from wllm_api.metrics import EngineCollector
from wllm_sched import EngineStats

VLLM_SERIES = [
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total", "request_success_total",
    "num_preemptions_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
    "e2e_request_latency_seconds_bucket", "request_decode_time_seconds_bucket",
    "request_queue_time_seconds_bucket", "request_prefill_time_seconds_bucket", "time_per_output_token_seconds_bucket",
    "request_inference_time_seconds_bucket", "request_time_per_output_token_seconds_bucket", "request_params_n_bucket",
    "request_params_max_tokens_bucket", "request_prompt_tokens_bucket", "request_generation_tokens_bucket",
    "cache_config_info", "http_requests_total", "http_request_duration_seconds_bucket",
]  # fmt: skip


def samples(client: httpx.Client) -> dict[str, float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    values: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            reason = sample.labels.get("finished_reason", "")
            values[sample.name + (f":{reason}" if reason else "")] = sample.value
            assert sample.labels["model_name"] == "scripted"
    return values


def test_health(client: httpx.Client) -> None:
    for path in ("/health", "/ping"):
        assert client.get(path).status_code == 200


def test_version(client: httpx.Client) -> None:
    assert isinstance(client.get("/version").json()["version"], str)


def test_series_have_vllms_names(client: httpx.Client) -> None:
    text = client.get("/metrics").text
    for name in VLLM_SERIES:
        assert f"\nwllm:{name}{{" in text


def test_metrics_count_requests_and_times(client: httpx.Client) -> None:
    before = samples(client)
    client.post(
        "/v1/completions", json={"prompt": "Hi", "n": 2, "max_tokens": 3, "ignore_eos": True}
    ).raise_for_status()
    after = samples(client)
    gained = {name: after[name] - before.get(name, 0) for name in after}
    assert gained["wllm:request_success_total:length"] == 2
    assert gained["wllm:time_to_first_token_seconds_count"] == 2
    assert gained["wllm:request_queue_time_seconds_count"] == gained["wllm:request_prefill_time_seconds_count"] == 2
    assert gained["wllm:e2e_request_latency_seconds_count"] == 2
    assert gained["wllm:request_generation_tokens_sum"] == 6
    assert gained["wllm:request_inference_time_seconds_count"] == 2
    assert gained["wllm:request_params_n_sum"] == 2
    assert gained["wllm:request_max_num_generation_tokens_sum"] == 3
    assert gained["wllm:request_params_max_tokens_sum"] == 3


def test_time_between_tokens_has_its_older_name_too(client: httpx.Client) -> None:
    client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 3}).raise_for_status()
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    now, before = families["wllm:inter_token_latency_seconds"], families["wllm:time_per_output_token_seconds"]
    assert before.type == now.type == "histogram"
    assert [(one.name.removeprefix(before.name), one.labels, one.value) for one in before.samples] == [
        (one.name.removeprefix(now.name), one.labels, one.value)
        for one in now.samples
        if not one.name.endswith("_created")
    ]


def test_models(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["scripted", "org/other-name"]
    for model in listed["data"]:
        assert model["object"] == "model"
        assert model["max_model_len"] > 0
        assert client.get(f"/v1/models/{model['id']}").json() == model


def test_unknown_model(client: httpx.Client) -> None:
    for answer in (
        client.get("/v1/models/..%2f..%2fetc"),
        client.post("/v1/completions", json={"model": "\\\\host\\share", "prompt": "Hi"}),
    ):
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "model", "model_not_found")


@pytest.mark.parametrize("path", ["/nope", "/v1/nope", "/redoc", "/v1/chat/completions/"])
def test_unknown_route(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert path in answer.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path", "surplus", "route"), [
    ("POST", "/v1/v1/messages", "/v1", "/v1/messages"), ("POST", "/v1/api/chat", "/v1", "/api/chat"),
    ("GET", "/v1/v1/models/scripted", "/v1", "/v1/models/scripted"),
    ("POST", "/v1/chat/completions/chat/completions", "/v1/chat/completions", "/chat/completions"),
])  # fmt: skip
def test_base_url_that_is_too_long(client: httpx.Client, method: str, path: str, surplus: str, route: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 404
    assert f"{route} is one: take {surplus} off the end of the client's base URL." in answer.text


@pytest.mark.parametrize("path", ["/v1/nope", "/v1/", "/v1/v1/chat/completions", "/x" * 20_000 + "/health"])
def test_hint_is_given_only_where_it_helps(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "/docs and /openapi.json list" in answer.text and "base URL" not in answer.text


def test_wrong_method(client: httpx.Client) -> None:
    answer = client.get("/v1/chat/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.json()["error"]["message"].endswith("Use POST.")


@pytest.mark.parametrize("path", ["//api/tags", "///api//tags", "//api//tags?a=//b"])
def test_doubled_slashes_before_the_first_part(client: httpx.Client, path: str) -> None:
    assert client.get(str(client.base_url).rstrip("/") + path).json()["models"]


@pytest.mark.parametrize("path", ["//v1//models", "/models", "/v1///models"])
def test_paths_that_clients_build(client: httpx.Client, path: str) -> None:
    assert client.get(str(client.base_url).rstrip("/") + path).json()["object"] == "list"


def test_openapi_shows_the_bodies(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        ref = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert ref.rpartition("/")[2] in schema["components"]["schemas"]
    assert "cdn" not in json.dumps(schema)


def test_both_loopbacks_answer(client: httpx.Client) -> None:
    port = client.base_url.port
    for host in ("127.0.0.1", "localhost"):
        assert httpx.get(f"http://{host}:{port}/health").status_code == 200


def families_of(stats: EngineStats) -> dict[str, Sample]:
    engine = cast(EngineClient, SimpleNamespace(stats=stats, num_restarts=0, info=None, state="ready"))
    return {family.name: family.samples[0] for family in EngineCollector({"m": engine}, "wllm:").collect()}


def test_spilled_memory_is_a_series() -> None:
    assert families_of(EngineStats(gpu_spilled_bytes=7))["wllm:gpu_spilled_bytes"].value == 7
    assert families_of(EngineStats())["wllm:gpu_spilled_bytes"].value == 0


def test_blocks_in_the_hosts_memory_are_counted() -> None:
    families = families_of(
        EngineStats(num_host_blocks=8, num_used_host_blocks=3, host_saves_total=5, host_loads_total=2)
    )
    assert families["wllm:kv_host_blocks"].value == 8
    assert families["wllm:kv_host_blocks_used"].value == 3
    assert (families["wllm:kv_host_saves"].name, families["wllm:kv_host_saves"].value) == (
        "wllm:kv_host_saves_total",
        5,
    )
    assert families["wllm:kv_host_loads"].value == 2
