"""Models that make a vector of a text, or a score of a pair, run by transformers in the engine process.

`wllm_runtime.open_engine` makes a `PoolingEngine` of a checkpoint that is one; nothing else imports this package.
"""
