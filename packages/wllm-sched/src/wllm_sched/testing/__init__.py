"""A GPU-less test bench for schedulers: a simulated device, a serial reference and random workloads.

Shipped, so that policies can be developed on a laptop: whatever a scheduler does, `run_workload` proves that every
request gets exactly the tokens that it would get alone.
"""

from wllm_sched.testing.checked import CheckedScheduler
from wllm_sched.testing.engine import FakeEngine
from wllm_sched.testing.model import FakeModel
from wllm_sched.testing.reference import Expected, expected_sample
from wllm_sched.testing.runner import FakeResult, FakeRunner
from wllm_sched.testing.workload import Totals, Workload, random_workload, run_workload

__all__ = [
    "CheckedScheduler",
    "Expected",
    "FakeEngine",
    "FakeModel",
    "FakeResult",
    "FakeRunner",
    "Totals",
    "Workload",
    "expected_sample",
    "random_workload",
    "run_workload",
]
