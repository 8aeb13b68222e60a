"""The OpenAI-compatible HTTP server of wLLM, and the text handling that it shares with the offline `LLM`.

`wllm_api.app.create_app` builds the server around an engine, `wllm_api.server.serve` runs it, `wllm_api.engine` runs
the engine in a process of its own, `wllm_api.text` turns text into token ids and back. Nothing here loads torch, and
importing the package itself loads nothing at all.
"""
