"""The tables of faults, by the names of kernels."""

from __future__ import annotations

from collections.abc import Mapping

from faults.fault import Table
from faults.tables import attention_decode, attention_plain, attention_prefill, layers, linear, sampling, step

TABLES: Mapping[str, Table] = {
    "activation": layers.ACTIVATION,
    "attention_decode": attention_decode.TABLE,
    "attention_plain": attention_plain.TABLE,
    "attention_prefill": attention_prefill.TABLE,
    "blocks": step.BLOCKS,
    "linear": linear.TABLE,
    "logprobs": sampling.LOGPROBS,
    "norm": layers.NORM,
    "rope": layers.ROPE,
    "sampling": sampling.SAMPLING,
    "step": step.STEP,
}
