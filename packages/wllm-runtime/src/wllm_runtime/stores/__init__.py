"""Models that are on this disk already, whoever put them there: the hub's cache, Ollama, LM Studio, given folders.

Reads names, sizes and manifests, never weights; downloads nothing, and deletes only what wLLM downloaded. Loads no
torch. Called by `checkpoint.locate` for names that are no path, by its downloads, and by `wllm models`.
"""

from wllm_runtime.stores.removal import remove
from wllm_runtime.stores.search import find, near, places, stored_models
from wllm_runtime.stores.stored_model import StoredModel

__all__ = ["StoredModel", "find", "near", "places", "remove", "stored_models"]
