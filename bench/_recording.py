"""A GPU that only counts: the runner's CUDA path on CPU tensors, with kernels that are noted instead of run.

Ops take their device functions, a step is enqueued on the calling thread as on a CUDA stream, and graphs replay the
function that was recorded. Nothing is computed: memory that nobody writes is zero, so every drawn token is token 0.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wllm_kernels.device.kernel import DeviceProperties, Grid, Launch, backends
from wllm_kernels.dispatch import OPS
from wllm_runtime import runner as runner_module
from wllm_runtime.graphs import Replay
from wllm_runtime.streams import Handle, Step
from wllm_runtime.testing import RecordedGraphs

T = TypeVar("T")


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what happens while it is `counting`: `outside` graphs, and `inside` what one replays.

    `ops` are calls of wllm_kernels' ops, `kernels` their launches, `torch` torch's ops that would run a kernel or a
    copy, `allocations` new tensors of the caching allocator, `replays` graphs.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outside: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        self.counting = False
        self._in_graph = False

    def note(self, what: str) -> None:
        """Count one."""
        if self.counting:
            (self.inside if self._in_graph else self.outside)[what] += 1

    @contextmanager
    def in_graph(self) -> Iterator[None]:
        """What happens here is in a replay, in which a GPU runs no Python: calls are not counted."""
        self.note("replays")
        self._in_graph, profile = True, sys.getprofile()
        sys.setprofile(None)
        try:
            yield
        finally:
            self._in_graph = False
            sys.setprofile(profile)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        is_empty = name.startswith(("empty", "new_empty"))
        if is_empty:
            result.zero_()
        if not self.counting:
            return result
        given = {_memory(tensor) for tensor in _tensors((args, kwargs or {}))}
        made = [tensor for tensor in _tensors(result) if _memory(tensor) not in given]
        for _ in made:
            self.note("allocations")
        # A view runs nothing; neither does memory that is only taken.
        if (made or func._schema.is_mutable) and not is_empty:
            self.note("torch")
        return result


class RecordingBackend:
    """A GPU of the size that many have. Its kernels do nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def properties(self, device: torch.device) -> DeviceProperties:
        """Those of a GeForce RTX 4070."""
        return DeviceProperties(89, num_multiprocessors=46, max_shared_bytes=99 * 1024)

    def resolve(self, device: torch.device, family: str, name: str, shared_bytes: int, overlaps: bool) -> Launch:
        """A launch that is noted."""

        def launch(grid: Grid, threads: int, shared_bytes: int, parameters: bytes) -> None:
            self._recorder.note("kernels")

        return launch


class InlineStream:
    """As a CUDA stream: a step is enqueued by the thread that submits it."""

    def submit(self, step: Step[T]) -> Handle[T]:
        """Enqueue here and now."""
        return _Enqueued(step())

    def close(self) -> None:
        """Nothing is left."""


class _Enqueued(Handle[T]):
    def __init__(self, collect: Callable[[], T]) -> None:
        self._collect = collect

    def wait(self) -> T:
        return self._collect()


class CountedGraphs(RecordedGraphs):
    """Notes replays."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def capture(self, work: Callable[[], None]) -> Replay:
        """Keep `work`."""
        replay = super().capture(work)

        def counted() -> None:
            with self._recorder.in_graph():
                replay()

        return counted


@contextmanager
def recording_gpu() -> Iterator[Recorder]:
    """Engines that are created here run on it."""
    recorder = Recorder()
    backends.register("cpu", RecordingBackend(recorder))
    with ExitStack() as changes:
        for op in OPS:
            changes.enter_context(patch.dict(op._functions, cpu=_noted(recorder, op._functions["cuda"])))
            changes.enter_context(patch.dict(op.implementation_names, cpu="device"))
        changes.enter_context(patch.object(runner_module, "open_stream", lambda device, depth, spin: InlineStream()))
        changes.enter_context(patch.object(runner_module, "graph_backend", lambda device: CountedGraphs(recorder)))
        changes.enter_context(recorder)
        yield recorder


def _noted(recorder: Recorder, function: Callable[..., None]) -> Callable[..., None]:
    def noted(first: torch.Tensor, *rest: object) -> None:
        recorder.note("ops")
        function(first, *rest)

    return noted


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
