"""Continuous-batching scheduler of wLLM: requests in, step plans out. Standard library and wllm-cache only."""

from wllm_sched.chunking import Chunk, ChunkPolicy, FixedChunks, TimedChunks
from wllm_sched.config import SchedulerConfig
from wllm_sched.engine import EngineLoop
from wllm_sched.errors import DeviceLost, EngineClosed, GrammarFailed, InvalidParameter, RequestRefused, SchedError
from wllm_sched.grammar import Grammar, GrammarCompiler, Matcher, Opening
from wllm_sched.messages import (
    Abort,
    Engine,
    EngineStats,
    FinishReason,
    ModelInfo,
    ServedEngine,
    StartTimes,
    Submit,
    Task,
    TokenEvent,
)
from wllm_sched.plan import (
    BlockCopy,
    NewBlocks,
    NewSlot,
    Row,
    Runner,
    StepHandle,
    StepPlan,
    StepResult,
    TokenLogprobs,
    TokenMask,
)
from wllm_sched.pooling import Pool, PooledText, Pooler
from wllm_sched.sampling import SamplingParams
from wllm_sched.scheduler import Scheduler
from wllm_sched.text_queue import TextQueue

__all__ = [
    "Abort",
    "BlockCopy",
    "Chunk",
    "ChunkPolicy",
    "DeviceLost",
    "Engine",
    "EngineClosed",
    "EngineLoop",
    "EngineStats",
    "FinishReason",
    "FixedChunks",
    "Grammar",
    "GrammarCompiler",
    "GrammarFailed",
    "InvalidParameter",
    "Matcher",
    "ModelInfo",
    "NewBlocks",
    "NewSlot",
    "Opening",
    "Pool",
    "PooledText",
    "Pooler",
    "RequestRefused",
    "Row",
    "Runner",
    "SamplingParams",
    "SchedError",
    "Scheduler",
    "SchedulerConfig",
    "ServedEngine",
    "StartTimes",
    "StepHandle",
    "StepPlan",
    "StepResult",
    "Submit",
    "Task",
    "TextQueue",
    "TimedChunks",
    "TokenEvent",
    "TokenLogprobs",
    "TokenMask",
]
