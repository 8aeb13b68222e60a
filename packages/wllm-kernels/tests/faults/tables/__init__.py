"""The tables of faults, by the names of kernels."""

from __future__ import annotations

from collections.abc import Mapping

from faults.fault import Table
from faults.tables import attention_plain

TABLES: Mapping[str, Table] = {"attention_plain": attention_plain.TABLE}
