"""`python -m wllm` is the `wllm` command."""

from __future__ import annotations

import sys

from wllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
