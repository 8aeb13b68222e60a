"""The checks, by theme. Each is a function of `Facts` that yields findings."""
