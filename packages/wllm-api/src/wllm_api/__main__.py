"""`python -m wllm_api`: the server around the scripted engine, to try clients without a model."""

from __future__ import annotations

import argparse
import logging
import sys

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.errors import ApiError
from wllm_api.hosting import HostedModel
from wllm_api.server import serve
from wllm_api.settings import Access
from wllm_api.tracing import tracer_from_environment


def main() -> int:
    """Parse the command line and serve; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m wllm_api", description="Serve a scripted engine, without a model.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--ollama-port", type=int, help="a second port, for programs that look for Ollama")
    parser.add_argument("--api-key", action="append", default=[], help="may be given several times")
    parser.add_argument("--no-auth", action="store_true", help="serve other machines without an API key")
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds that the scripted engine takes for a token")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        app = create_app(
            [
                HostedModel(
                    EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {"step_s": options.step_s}),
                    ["scripted"],
                )
            ],
            tracer=tracer_from_environment(),
            access=Access(api_keys=tuple(options.api_key), allowed_hosts=(options.host,)),
        )
        return serve(
            app,
            options.host,
            options.port,
            ollama_port=options.ollama_port,
            no_auth=options.no_auth,
            on_bound=lambda url: logging.getLogger("wllm_api").info("listening on %s/v1", url),
        )
    except ApiError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
