"""From the sources in csrc/ to machine code: the table of kernel families, NVRTC, and the container of the wheel.

Owns everything that the build and the fallback on a user's machine share. Needs only the standard library and imports
nothing but the errors from the rest of wllm_kernels, so that the build hook can load it where torch is not installed.
"""
