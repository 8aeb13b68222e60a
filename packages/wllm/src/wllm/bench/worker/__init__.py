"""The process that holds one engine for `wllm bench compare`. It runs in that engine's own Python.

So this folder imports nothing of wllm at its top (wllm may not be installed there), only the standard library and, by
relative imports, itself; an engine's package is looked up by name when the engine starts. `main.py` speaks with the
parent.
"""
