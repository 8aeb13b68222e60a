"""The engine process: started, fed, watched and restarted from the server's event loop."""

from wllm_api.engine.process import EngineProcess
from wllm_api.engine.stream import RequestStream

__all__ = ["EngineProcess", "RequestStream"]
