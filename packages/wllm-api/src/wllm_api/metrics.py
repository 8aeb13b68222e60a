"""The Prometheus series, under vLLM's names behind a settable prefix, so that existing dashboards fit.

Counters of the engine are read from its latest `EngineStats`; times are taken where the client sees them, in this
process. Each server has its own registry, and each series the name of a model as a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wllm_api.client import EngineClient
from wllm_sched.messages import EngineStats

FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
BETWEEN_TOKENS, BETWEEN_TOKENS_BEFORE = "inter_token_latency_seconds", "time_per_output_token_seconds"
BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
WHOLE_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
FEW = (1, 2, 5, 10, 20)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("Time to the first token.", FIRST_TOKEN_S),
    BETWEEN_TOKENS: ("Time between tokens.", BETWEEN_TOKENS_S),
    "request_queue_time_seconds": ("Time until the request got a slot.", WHOLE_S),
    "request_prefill_time_seconds": ("Time from the slot to the first token.", WHOLE_S),
    "e2e_request_latency_seconds": ("Time to the last token.", WHOLE_S),
    "request_decode_time_seconds": ("Time from the first to the last token.", WHOLE_S),
    "request_inference_time_seconds": ("Time from the slot to the last token.", WHOLE_S),
    "request_time_per_output_token_seconds": ("Mean time of a token after the first.", BETWEEN_TOKENS_S),
    "request_params_n": ("Answers that a request asked for.", FEW),
    "request_params_max_tokens": ("Most tokens that an answer may have.", TOKENS),
    "request_prompt_tokens": ("Prompt tokens of a request.", TOKENS),
    "request_generation_tokens": ("Generated tokens of an answer.", TOKENS),
    "request_max_num_generation_tokens": ("Generated tokens of a request's longest answer.", TOKENS),
}
# By name: what it means, and what an engine has of it.
Reading = Callable[[EngineClient], float]
GAUGES: Mapping[str, tuple[str, Reading]] = {
    "model_loaded": ("1 while the model is loaded.", lambda engine: engine.state == "ready"),
    "num_requests_running": ("Requests in a slot.", lambda engine: engine.stats.num_running),
    "num_requests_waiting": ("Requests that wait for a slot.", lambda engine: engine.stats.num_waiting),
    "kv_cache_usage_perc": ("Share of KV blocks in use, 0 to 1.", lambda engine: _used_share(engine.stats)),
    "kv_blocks": ("KV blocks of the pool.", lambda engine: engine.stats.num_blocks),
    "kv_blocks_free": ("KV blocks that no request holds.", lambda engine: engine.stats.num_free_blocks),
    "kv_host_blocks": ("KV blocks in the host's memory.", lambda engine: engine.stats.num_host_blocks),
    "kv_host_blocks_used": ("Of these, blocks that hold a prefix.", lambda engine: engine.stats.num_used_host_blocks),
    "gpu_spilled_bytes": (
        "GPU memory that Windows moved to host memory.",
        lambda engine: engine.stats.gpu_spilled_bytes,
    ),
    "max_steps_in_flight": ("Most steps seen in flight.", lambda engine: engine.stats.max_in_flight_seen),
}
COUNTERS: Mapping[str, tuple[str, Reading]] = {
    "prompt_tokens": ("Prompt tokens taken.", lambda engine: engine.stats.prompt_tokens_total),
    "generation_tokens": ("Tokens generated.", lambda engine: engine.stats.generation_tokens_total),
    "prefix_cache_queries": (
        "Prompt tokens looked up in the prefix cache.",
        lambda engine: engine.stats.prefix_cache_queries_total,
    ),
    "prefix_cache_hits": (
        "Prompt tokens found in the prefix cache.",
        lambda engine: engine.stats.prefix_cache_hits_total,
    ),
    "kv_host_saves": ("KV blocks copied to the host's memory.", lambda engine: engine.stats.host_saves_total),
    "kv_host_loads": ("KV blocks that came back from there.", lambda engine: engine.stats.host_loads_total),
    "num_preemptions": (
        "Requests that lost their blocks and were recomputed.",
        lambda engine: engine.stats.preemptions_total,
    ),
    "engine_steps": ("Steps of the engine.", lambda engine: engine.stats.steps_total),
    "prefill_chunks": ("Prefill chunks computed.", lambda engine: engine.stats.prefill_chunks_total),
    "aborts_in_flight": (
        "Requests that ended while a step of theirs ran.",
        lambda engine: engine.stats.aborts_in_flight_total,
    ),
    "graph_replays": ("Steps that replayed a CUDA graph.", lambda engine: engine.stats.graph_replays_total),
    "eager_steps": ("Steps that ran kernel by kernel.", lambda engine: engine.stats.eager_steps_total),
    "graph_failures": ("CUDA graphs that could not be captured.", lambda engine: engine.stats.graph_failures_total),
    "engine_restarts": ("Restarts of the engine process.", lambda engine: engine.num_restarts),
}


class ModelMetrics:
    """The series of one model, which its requests are counted in."""

    def __init__(self, name: str, histograms: Mapping[str, Histogram], finished: Counter, loads: Counter) -> None:
        def of(histogram: str) -> Histogram:
            return histograms[histogram].labels(name)

        self.first_token = of("time_to_first_token_seconds")
        self.between_tokens = of(BETWEEN_TOKENS)
        self.queue = of("request_queue_time_seconds")
        self.prefill = of("request_prefill_time_seconds")
        self.whole = of("e2e_request_latency_seconds")
        self.decode = of("request_decode_time_seconds")
        self.inference = of("request_inference_time_seconds")
        self.per_token = of("request_time_per_output_token_seconds")
        self.params_n = of("request_params_n")
        self.params_max_tokens = of("request_params_max_tokens")
        self.prompt_tokens = of("request_prompt_tokens")
        self.generation_tokens = of("request_generation_tokens")
        self.longest_answer = of("request_max_num_generation_tokens")
        self.loads = loads.labels(name)
        self._finished = {reason: finished.labels(name, reason) for reason in ("stop", "length", "abort", "error")}

    def count_finished(self, reason: str) -> None:
        """Count one ended answer."""
        self._finished[reason].inc()


class Metrics:
    """All series of one server; `engines` has the engine of each model by the name that labels its series."""

    def __init__(self, engines: Mapping[str, EngineClient], prefix: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engines, prefix))
        histograms = {
            name: Histogram(prefix + name, text, ["model_name"], registry=self.registry, buckets=buckets)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self.registry.register(OlderName(histograms[BETWEEN_TOKENS], prefix + BETWEEN_TOKENS_BEFORE))
        finished = Counter(
            f"{prefix}request_success",
            "Answers that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        loads = Counter(
            f"{prefix}model_loads", "How often the model was loaded.", ["model_name"], registry=self.registry
        )
        self._http_requests = Counter(
            f"{prefix}http_requests",
            "HTTP requests that ended, refused ones too.",
            ["model_name", "handler", "method", "status"],
            registry=self.registry,
        )
        self._http_duration = Histogram(
            f"{prefix}http_request_duration_seconds",
            "Time of a HTTP request, to the end of its answer.",
            ["model_name", "handler"],
            registry=self.registry,
            buckets=WHOLE_S,
        )
        self._models = {name: ModelMetrics(name, histograms, finished, loads) for name in engines}
        self._first = next(iter(engines))

    def of(self, name: str) -> ModelMetrics:
        """The series of one model."""
        return self._models[name]

    def count_request(self, name: str | None, handler: str, method: str, status: int, duration_s: float) -> None:
        """Count one HTTP request by its model, the first where it is for none, and its declared route.

        Unusual methods share a series.
        """
        name = name or self._first
        known = method if method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE") else "other"
        self._http_requests.labels(name, handler, known, str(status)).inc()
        self._http_duration.labels(name, handler).observe(duration_s)


class OlderName(Collector):
    """A histogram under the name that it had in older releases of vLLM, for their dashboards; observed once only."""

    def __init__(self, histogram: Histogram, name: str) -> None:
        self._histogram = histogram
        self._name = name

    def collect(self) -> Iterator[Metric]:
        """The metric family (prometheus_client)."""
        for family in self._histogram.collect():
            copy = Metric(self._name, f"The same as {family.name}.", "histogram")
            for sample in family.samples:
                copy.add_sample(self._name + sample.name.removeprefix(family.name), sample.labels, sample.value)
            yield copy


class EngineCollector(Collector):
    """Reads the engines' counters when a scrape asks for them; after a restart they begin at 0, as counters may."""

    def __init__(self, engines: Mapping[str, EngineClient], prefix: str) -> None:
        self._engines = engines
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """The metric families (prometheus_client)."""
        for name, (text, value) in GAUGES.items():
            gauge = GaugeMetricFamily(self._prefix + name, text, labels=["model_name"])
            for model_name, engine in self._engines.items():
                gauge.add_metric([model_name], value(engine))
            yield gauge
        config = GaugeMetricFamily(
            self._prefix + "cache_config_info",
            "The KV cache, in labels.",
            labels=["model_name", "block_size", "num_gpu_blocks", "cache_dtype"],
        )
        for model_name, engine in self._engines.items():
            if (info := engine.info) is not None:
                config.add_metric([model_name, str(info.block_size), str(info.num_kv_blocks), info.dtype], 1)
        if config.samples:
            yield config
        for name, (text, value) in COUNTERS.items():
            counter = CounterMetricFamily(self._prefix + name, text, labels=["model_name"])
            for model_name, engine in self._engines.items():
                counter.add_metric([model_name], value(engine))
            yield counter


def _used_share(stats: EngineStats) -> float:
    return 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
