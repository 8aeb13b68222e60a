"""`wllm models`: what models are on this disk, fetching one, and deleting one that wLLM fetched."""
