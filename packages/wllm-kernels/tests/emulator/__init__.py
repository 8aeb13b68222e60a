"""The emulator of the device code: runs the product's kernels on the CPU, in the tests."""
