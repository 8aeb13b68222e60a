"""Every op on a GPU against its reference on the CPU, at small shapes: what `wllm doctor --kernels` and the tests run.

Shipped with the package, since only a user's own machine can tell whether its GPU and driver compute what they should.
"""
