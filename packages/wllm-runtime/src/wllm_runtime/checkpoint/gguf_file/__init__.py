"""GGUF files: header, configuration, tokenizer and weights, all from one file.

`opening.open_gguf` is the entry. The `gguf` package supplies constants and dequantisers; files are read by position
here, since its reader maps them.
"""
