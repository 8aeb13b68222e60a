"""The engine process: a shell around one `ServedEngine`.

Three threads. The reader starts before the factory is imported, because that is what loads torch: on end of file, when
the server is gone, it ends the process at once, even while the engine loads or computes. The main thread runs the
engine and never touches the pipe. The writer sends one message a step. Nothing polls: an idle engine waits for its
inbox without a timeout.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import cast

from wllm_api.engine.wire import (
    Batch,
    Channel,
    CheckDevice,
    DeviceWorks,
    Failure,
    ForEngineLoop,
    FromEngine,
    Ping,
    Pong,
    Stop,
)
from wllm_api.power_throttling import refuse_throttling
from wllm_sched.errors import DeviceLost, EngineClosed, RequestRefused, SchedError
from wllm_sched.messages import Abort, ServedEngine, Submit, TokenEvent
from wllm_sched.pooling import Pool, Pooler

EXIT_SERVER_GONE = 3
_STATS_INTERVAL_S = 0.1

logger = logging.getLogger(__name__)


def main(channel: Channel, factory: str, options: Mapping[str, object]) -> None:
    """Load the engine that `factory` ("module:function") makes of `options`, and serve it until `Stop`."""
    _ignore_interrupts()
    refuse_throttling()
    inbox: queue.SimpleQueue[ForEngineLoop] = queue.SimpleQueue()
    outbox: queue.SimpleQueue[FromEngine | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, inbox, outbox), name="wllm-reader", daemon=True).start()
    writer = threading.Thread(target=_write, args=(channel, outbox), name="wllm-writer", daemon=True)
    writer.start()
    loading = True
    try:
        engine = _load(factory, options)
        outbox.put(engine.model_info)
        loading = False
        # The model lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        # Old garbage waits until a quarter as many objects were added as the last full collection left: those of the
        # model and of torch must not count.
        gc.collect()
        _serve(engine, inbox, outbox)
        engine.close()
    except Exception as error:
        outbox.put(Failure(_told(error), traceback.format_exc(), loading))
        raise SystemExit(1) from None
    finally:
        outbox.put(None)
        writer.join()


def _told(error: Exception) -> str:
    # The named exceptions of wLLM say what happened and what to do; of any other the kind matters.
    return str(error) if type(error).__module__.startswith("wllm") else f"{type(error).__name__}: {error}"


def _ignore_interrupts() -> None:
    # Ctrl+C reaches every process of a console. What it means is for the server to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "win32":
        signal.signal(signal.SIGBREAK, signal.SIG_IGN)


def _load(factory: str, options: Mapping[str, object]) -> ServedEngine:
    module, _, function = factory.partition(":")
    create = cast(Callable[[Mapping[str, object]], ServedEngine], getattr(importlib.import_module(module), function))
    return create(options)


def _read(
    channel: Channel, inbox: queue.SimpleQueue[ForEngineLoop], outbox: queue.SimpleQueue[FromEngine | None]
) -> None:
    while True:
        try:
            message = channel.recv()
        except (EOFError, OSError):
            os._exit(EXIT_SERVER_GONE)
        if isinstance(message, Ping):
            outbox.put(Pong())
        else:
            inbox.put(message)


def _write(channel: Channel, outbox: queue.SimpleQueue[FromEngine | None]) -> None:
    while (message := outbox.get()) is not None:
        try:
            channel.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError:
            return  # the server is gone, and the reader ends the process


def _serve(
    engine: ServedEngine, inbox: queue.SimpleQueue[ForEngineLoop], outbox: queue.SimpleQueue[FromEngine | None]
) -> None:
    reported = time.perf_counter()
    while True:
        while not engine.has_work() or not inbox.empty():
            if inbox.empty():
                outbox.put(Batch.pack((), engine.stats()))
            message = inbox.get()
            if isinstance(message, Stop):
                return
            if isinstance(message, Abort):
                engine.abort(message)
            elif isinstance(message, CheckDevice):
                engine.check_device()
                outbox.put(DeviceWorks())
            elif refusal := _submit(engine, message):
                outbox.put(Batch.pack(refusal, None))
        events = engine.step()
        stats = None
        if time.perf_counter() - reported >= _STATS_INTERVAL_S:
            reported = time.perf_counter()
            stats = engine.stats()
        if events or stats is not None:
            outbox.put(Batch.pack(events, stats))


def _submit(engine: ServedEngine, request: Submit | Pool) -> list[TokenEvent]:
    code: str | None
    parameter: str | None
    try:
        if isinstance(request, Submit):
            engine.submit(request)
        elif isinstance(engine, Pooler):
            engine.pool(request)
        else:
            raise RequestRefused("This model writes text and makes no vectors. Ask it for text.")
        return []
    except (AssertionError, DeviceLost, EngineClosed):
        raise  # an invariant of the engine itself is broken, or it can do no more: no request is safe
    except SchedError as error:
        text, code, parameter = str(error), getattr(error, "code", None), getattr(error, "parameter", None)
    except Exception as error:
        logger.exception("Request %d failed when it was submitted", request.request_id)
        text, code, parameter = f"{type(error).__name__}: {error}", "internal_error", None
    return [
        TokenEvent(
            request.request_id, index, finish_reason="error", error=text, error_code=code, error_parameter=parameter
        )
        for index in range(request.params.n if isinstance(request, Submit) else len(request.texts))
    ]
