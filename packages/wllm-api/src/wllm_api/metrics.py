"""The Prometheus series, under vLLM's names behind a settable prefix, so that existing dashboards fit.

Counters of the engine are read from its latest `EngineStats`; times are taken where the client sees them, in this
process. Each server has its own registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wllm_api.client import EngineClient

FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
BETWEEN_TOKENS, BETWEEN_TOKENS_BEFORE = "inter_token_latency_seconds", "time_per_output_token_seconds"
BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
WHOLE_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
FEW = (1, 2, 5, 10, 20)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)


class Metrics:
    """All series of one server, labelled with its model's name."""

    def __init__(self, engine: EngineClient, model_name: str, prefix: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine, model_name, prefix))

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            family = Histogram(prefix + name, text, ["model_name"], registry=self.registry, buckets=tuple(buckets))
            return family.labels(model_name)

        self.first_token = histogram("time_to_first_token_seconds", "Time to the first token.", FIRST_TOKEN_S)
        self.between_tokens = histogram(BETWEEN_TOKENS, "Time between tokens.", BETWEEN_TOKENS_S)
        self.registry.register(OlderName(self.between_tokens, prefix + BETWEEN_TOKENS_BEFORE, model_name))
        self.queue = histogram("request_queue_time_seconds", "Time until the request got a slot.", WHOLE_S)
        self.prefill = histogram("request_prefill_time_seconds", "Time from the slot to the first token.", WHOLE_S)
        self.whole = histogram("e2e_request_latency_seconds", "Time to the last token.", WHOLE_S)
        self.decode = histogram("request_decode_time_seconds", "Time from the first to the last token.", WHOLE_S)
        self.inference = histogram("request_inference_time_seconds", "Time from the slot to the last token.", WHOLE_S)
        self.per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time of a token after the first.", BETWEEN_TOKENS_S
        )
        self.params_n = histogram("request_params_n", "Answers that a request asked for.", FEW)
        self.params_max_tokens = histogram("request_params_max_tokens", "Most tokens that an answer may have.", TOKENS)
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self.generation_tokens = histogram("request_generation_tokens", "Generated tokens of an answer.", TOKENS)
        self.longest_answer = histogram(
            "request_max_num_generation_tokens", "Generated tokens of a request's longest answer.", TOKENS
        )
        self._finished = Counter(
            f"{prefix}request_success",
            "Answers that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self.registry,
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
        self._model_name = model_name
        for reason in ("stop", "length", "abort", "error"):
            self._finished.labels(model_name, reason)

    def count_finished(self, reason: str) -> None:
        """Count one ended answer."""
        self._finished.labels(self._model_name, reason).inc()

    def count_request(self, handler: str, method: str, status: int, duration_s: float) -> None:
        """Count one HTTP request by its declared route; unusual methods share a series."""
        known = method if method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE") else "other"
        self._http_requests.labels(self._model_name, handler, known, str(status)).inc()
        self._http_duration.labels(self._model_name, handler).observe(duration_s)


class OlderName(Collector):
    """A histogram under the name that it had in older releases of vLLM, for their dashboards; observed once only."""

    def __init__(self, histogram: Histogram, name: str, model_name: str) -> None:
        self._histogram = histogram
        self._name = name
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """The metric family (prometheus_client)."""
        for family in self._histogram.collect():
            copy = Metric(self._name, f"The same as {family.name}.", "histogram")
            for sample in family.samples:
                labels = {"model_name": self._model_name, **sample.labels}
                copy.add_sample(self._name + sample.name.removeprefix(family.name), labels, sample.value)
            yield copy


class EngineCollector(Collector):
    """Reads the engine's counters when a scrape asks for them; after a restart they begin at 0, as counters may."""

    def __init__(self, engine: EngineClient, model_name: str, prefix: str) -> None:
        self._engine = engine
        self._model_name = model_name
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """The metric families (prometheus_client)."""
        stats = self._engine.stats
        used = 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        yield self._gauge("num_requests_running", "Requests in a slot.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Requests that wait for a slot.", stats.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", used)
        yield self._gauge("kv_blocks", "KV blocks of the pool.", stats.num_blocks)
        yield self._gauge("kv_blocks_free", "KV blocks that no request holds.", stats.num_free_blocks)
        yield self._gauge("kv_host_blocks", "KV blocks in the host's memory.", stats.num_host_blocks)
        yield self._gauge("kv_host_blocks_used", "Of these, blocks that hold a prefix.", stats.num_used_host_blocks)
        yield self._gauge("gpu_spilled_bytes", "GPU memory that Windows moved to host memory.", stats.gpu_spilled_bytes)
        info = self._engine.info
        if info is not None:
            config = GaugeMetricFamily(
                self._prefix + "cache_config_info",
                "The KV cache, in labels.",
                labels=["model_name", "block_size", "num_gpu_blocks", "cache_dtype"],
            )
            config.add_metric([self._model_name, str(info.block_size), str(info.num_kv_blocks), info.dtype], 1)
            yield config
        yield self._gauge("max_steps_in_flight", "Most steps seen in flight.", stats.max_in_flight_seen)
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens taken.", stats.prompt_tokens_total),
            ("generation_tokens", "Tokens generated.", stats.generation_tokens_total),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries_total),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_cache_hits_total),
            ("kv_host_saves", "KV blocks copied to the host's memory.", stats.host_saves_total),
            ("kv_host_loads", "KV blocks that came back from there.", stats.host_loads_total),
            ("num_preemptions", "Requests that lost their blocks and were recomputed.", stats.preemptions_total),
            ("engine_steps", "Steps of the engine.", stats.steps_total),
            ("prefill_chunks", "Prefill chunks computed.", stats.prefill_chunks_total),
            ("aborts_in_flight", "Requests that ended while a step of theirs ran.", stats.aborts_in_flight_total),
            ("graph_replays", "Steps that replayed a CUDA graph.", stats.graph_replays_total),
            ("eager_steps", "Steps that ran kernel by kernel.", stats.eager_steps_total),
            ("graph_failures", "CUDA graphs that could not be captured.", stats.graph_failures_total),
            ("engine_restarts", "Restarts of the engine process.", self._engine.num_restarts),
        ):
            counter = CounterMetricFamily(self._prefix + name, text, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(self._prefix + name, text, labels=["model_name"])
        gauge.add_metric([self._model_name], value)
        return gauge
