"""Continuous-batching scheduler of wLLM: requests in, step plans out. Standard library and wllm-cache only."""

from __future__ import annotations
