"""Planted faults: whether the tests in the emulator notice when something is missing in a kernel."""
