"""The models of one server: what each is called, which of them are loaded, and who uses them."""

from wllm_api.hosting.hosted_model import HostedModel
from wllm_api.hosting.loaded_model import LoadedModel
from wllm_api.hosting.residency import Residency

__all__ = ["HostedModel", "LoadedModel", "Residency"]
