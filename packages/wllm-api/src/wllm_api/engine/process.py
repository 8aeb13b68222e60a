"""The engine process as the server sees it: one object whatever happens to the process behind it.

Owns the supervision (start, restart with back-off, giving up, stopping) and which request belongs to which stream.
Never loads a model and never blocks the event loop. Belongs to that loop: only its thread calls anything here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from wllm_api.engine.spawn import SpawnedEngine
from wllm_api.engine.stream import RequestStream
from wllm_api.engine.wire import Batch, CheckDevice, DeviceWorks, Failure, FromEngine, Ping, Pong, Stop
from wllm_api.errors import EngineDied, EngineState, EngineUnavailable
from wllm_sched.messages import Abort, EngineStats, ModelInfo, Submit, TokenEvent
from wllm_sched.pooling import Pool, PooledText
from wllm_sched.sampling import SamplingParams

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.5
# A GPU may take its time to come back when the computer wakes up, and so may a network drive with the model. Loads, not
# seconds: the computer may sleep again. With the pauses these are four minutes.
_MAX_FAILED_RELOADS, _LONGEST_BACKOFF_S = 20, 15.0
# Looks at a silent engine before it counts as hung. Looks, not seconds: neither a computer that slept nor a server that
# was kept from running itself must end its engine.
_LOOKS = 10

_WHY_UNAVAILABLE: Mapping[EngineState, str] = {
    "loading": "The model is still loading. Send the request again in a few seconds.",
    "restarting": "The engine process died and is being restarted. Send the request again in a few seconds.",
    "failed": "The engine process died too often and was given up. Read the server's log and start the server again.",
    "stopped": "The engine is stopped: the server is shutting down. Send the request to a running server.",
}


class EngineProcess:
    """Runs `factory` ("module:function") on `options` in a spawned process, and starts it again when it dies.

    `info` is what is known of the model, also when it has been stopped since. `on_restart()` is called after each
    restart. `on_failed(text)` is called when the engine is given up: after `max_crashes` within `window_s` seconds, or
    at once when the factory raises before it was ready. An engine that was ready once and cannot be loaded again has
    not crashed: it is tried 20 times, with pauses of up to 15 s. One that has requests, or is to check its device,
    hangs when it ends no step within `step_timeout_s` seconds, or when no thread of its process answers within
    `silence_timeout_s` (the process is stopped, or code keeps Python's lock): it is ended, and started again as after a
    crash. How long it loads is its own affair.
    """

    def __init__(
        self,
        factory: str,
        options: Mapping[str, object],
        *,
        on_restart: Callable[[], None] | None = None,
        on_failed: Callable[[str], None] | None = None,
        max_crashes: int = 3,
        window_s: float = 300.0,
        step_timeout_s: float = 600.0,
        silence_timeout_s: float = 60.0,
    ) -> None:
        self.state: EngineState = "stopped"
        self.info: ModelInfo | None = None
        self.stats = EngineStats()
        self.pid: int | None = None
        self.num_restarts = 0
        self.error: str | None = None
        self._factory = factory
        self._options = options
        self._on_restart = on_restart
        self._on_failed = on_failed
        self._max_crashes = max_crashes
        self._window_s = window_s
        self._step_timeout_s = step_timeout_s
        self._silence_timeout_s = silence_timeout_s
        self._look_s = min(step_timeout_s, silence_timeout_s) / _LOOKS
        self._silent_looks = 0
        self._looks_without_step = 0
        self._is_checking = False
        self._next_look: asyncio.TimerHandle | None = None
        self._crashes: deque[float] = deque()
        self._failed_reloads = 0
        self._request_ids = itertools.count()
        self._streams: dict[int, RequestStream] = {}
        self._spawned: SpawnedEngine | None = None
        self._failure: Failure | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._stopping = False
        self._was_ready = False
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Start the process and return at once, in state "loading"; raises `OSError` when there can be none."""
        assert self.state in ("stopped", "failed"), "an engine is started once, or again after its end"
        self._stopping = self._was_ready = False
        self._failed_reloads = 0
        self._crashes.clear()
        self.error = None
        self._spawn("loading")

    async def wait_ready(self) -> ModelInfo:
        """Wait until requests are taken; raises `EngineDied` when the engine failed or was stopped."""
        while self.state in ("loading", "restarting"):
            self._changed.clear()
            await self._changed.wait()
        if self.state != "ready":
            raise EngineDied(self.error or _WHY_UNAVAILABLE[self.state])
        assert self.info is not None, "a ready engine has sent its ModelInfo"
        return self.info

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the process, politely for `timeout_s` seconds if it is ready; open streams get an error event."""
        self._stopping = True
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        if self._spawned is not None:
            if self.state == "ready":
                self._spawned.send(Stop())
                try:
                    await asyncio.wait_for(self._wait_ended(), timeout_s)
                except TimeoutError:
                    logger.warning("The engine process is still busy after %g s and is ended", timeout_s)
            if self._spawned is not None:
                self._spawned.kill()
                await self._wait_ended()
        if self.state != "failed":
            self._set_state("stopped")

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> RequestStream:
        """Start a request; raises `EngineUnavailable` unless the state is "ready"."""
        request_id = next(self._request_ids)
        return self._send(Submit(request_id, prompt_token_ids, params), params.n)

    def pool(self, texts: Sequence[PooledText], *, dimensions: int | None, normalize: bool | None) -> RequestStream:
        """Ask for a vector of each text, as in `Pool`; raises `EngineUnavailable` unless the state is "ready"."""
        request_id = next(self._request_ids)
        return self._send(Pool(request_id, texts, dimensions, normalize), len(texts))

    def check_device(self) -> None:
        """Let a ready engine find out whether it still has its device: one that lost it dies and is started again.

        What crashed before is forgotten: who asks has reason to think that the device is at fault.
        """
        self._crashes.clear()
        if self.state == "ready" and self._spawned is not None:
            self._spawned.send(CheckDevice())
            self._is_checking = True

    def _send(self, request: Submit | Pool, num_samples: int) -> RequestStream:
        if self.state != "ready" or self._spawned is None or self._stopping:
            state = "stopped" if self._stopping else self.state
            raise EngineUnavailable(_WHY_UNAVAILABLE[state], state)
        self._spawned.send(request)
        stream = RequestStream(request.request_id, num_samples, self._abort)
        if num_samples:  # without, it has ended already
            self._streams[request.request_id] = stream
        return stream

    def _abort(self, abort: Abort) -> None:
        if self._spawned is not None:
            self._spawned.send(abort)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._changed.set()

    async def _wait_ended(self) -> None:
        while self._spawned is not None:
            self._changed.clear()
            await self._changed.wait()

    def _spawn(self, state: EngineState) -> None:
        self._failure = None
        self._is_checking = False
        options = self._options if self.info is None else {**self._options, **self.info.restart_options}
        self._spawned = SpawnedEngine(self._factory, options, self._take, self._ended)
        self.pid = self._spawned.pid
        self._set_state(state)
        self._look_later()

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(self._look_s, self._look)

    def _look(self) -> None:
        """End an engine that hangs: one that runs tells of each step, or of several within a second."""
        has_work = self._streams or self._is_checking
        if self.state != "ready" or not has_work or self._spawned is None:
            self._silent_looks = self._looks_without_step = 0
            self._look_later()
            return
        self._silent_looks += 1
        self._looks_without_step += 1
        if (self._silent_looks - 1) * self._look_s >= self._silence_timeout_s:
            self._end_hung(f"its process gave no sign of life within {self._silence_timeout_s:g} s")
        elif (self._looks_without_step - 1) * self._look_s >= self._step_timeout_s:
            self._end_hung(f"no step ended within {self._step_timeout_s:g} s")
        else:
            self._spawned.send(Ping())
            self._look_later()

    def _end_hung(self, sign: str) -> None:
        assert self._spawned is not None, "an engine that has work runs"
        self._failure = Failure(f"it hung: {sign}", "", loading=False)
        self._spawned.kill()

    def _take(self, spawned: SpawnedEngine, message: FromEngine) -> None:
        if spawned is not self._spawned:
            return
        self._silent_looks = 0
        match message:
            case ModelInfo():
                restarted = self.state == "restarting"
                self.info = message
                self._failed_reloads = 0
                self._was_ready = True
                self._set_state("ready")
                if restarted:
                    logger.info("The engine process was restarted")
                    if self._on_restart is not None:
                        self._on_restart()
            case Batch():
                self._looks_without_step = 0
                if message.stats is not None:
                    self.stats = message.stats
                for event in message.events():
                    self._deliver(event)
            case Pong():
                pass
            case DeviceWorks():
                self._is_checking = False
            case Failure():
                self._failure = message

    def _deliver(self, event: TokenEvent) -> None:
        stream = self._streams.get(event.request_id)
        if stream is None or not stream.expects(event.index):
            logger.error("I13: sample %d of request %d got an event after its last", event.index, event.request_id)
            return
        stream.deliver(event)
        if stream.finished:
            del self._streams[event.request_id]

    def _ended(self, spawned: SpawnedEngine, exit_code: int | None) -> None:
        if spawned is not self._spawned:
            return
        self._spawned = None
        self.pid = None
        self.stats = EngineStats()
        if self._next_look is not None:
            self._next_look.cancel()
        if self._stopping:
            self._fail_streams("The server is shutting down. Send the request again later.", "engine_stopped")
            self._set_state("stopped")
            return
        failure = self._failure
        reason = f"exit code {exit_code}" if failure is None else failure.text
        if failure is not None and failure.loading and not self._was_ready:
            logger.debug("The engine could not be loaded\n%s", failure.trace)
            self._give_up(f"The engine could not be loaded: {failure.text}")
            return
        if failure is not None and failure.trace:
            logger.error("The engine process failed\n%s", failure.trace)
        self.error = f"The engine process died ({reason})."
        self._fail_streams(f"{self.error} The request was lost. Send it again.", "engine_died")
        self._after_crash()

    def _after_crash(self) -> None:
        if self.state == "restarting" and self._was_ready:
            self._after_failed_reload()
            return
        now = time.perf_counter()
        self._crashes.append(now)
        while now - self._crashes[0] > self._window_s:
            self._crashes.popleft()
        count = len(self._crashes)
        if count >= self._max_crashes:
            self._give_up(f"{self.error} That was crash {count} within {self._window_s:g} s, so it is not restarted.")
            return
        self._restart_in(_FIRST_BACKOFF_S * 2 ** (count - 1))

    def _after_failed_reload(self) -> None:
        self._failed_reloads += 1
        count = self._failed_reloads
        if count >= _MAX_FAILED_RELOADS:
            self._give_up(
                f"{self.error} It could not be loaded again {count} times in a row, so that was the last try."
            )
            return
        self._restart_in(min(_FIRST_BACKOFF_S * 2**count, _LONGEST_BACKOFF_S))

    def _restart_in(self, delay_s: float) -> None:
        logger.error("%s Restart in %g s", self.error, delay_s)
        self._set_state("restarting")
        self._restart = asyncio.get_running_loop().call_later(delay_s, self._start_again)

    def _start_again(self) -> None:
        self._restart = None
        try:
            self._spawn("restarting")
            self.num_restarts += 1
        except OSError as error:
            self.error = f"The engine process could not be started ({error})."
            self._after_crash()

    def _give_up(self, text: str) -> None:
        self.error = text
        self._set_state("failed")
        if self._on_failed is not None:
            self._on_failed(text)

    def _fail_streams(self, text: str, code: str) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(text, code)
