"""`wllm doctor`: what of this machine and installation keeps wLLM from running well, and what to do about it.

Standard library only at every top level, so that it works where torch, psutil or half of the wheels are missing.
"""
