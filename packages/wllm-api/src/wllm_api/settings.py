"""The resolved settings of one server: plain frozen values, built once by whoever starts it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use the server.

    `api_keys` empty: no key is asked for. `allowed_origins` are web origins ("https://chat.example") beside those of
    this machine, "*" for any. `allowed_hosts` are host names beside this machine's own ones and any IP address.
    """

    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsers:
    """How answers are taken apart: names of `wllm_api.tools`, "auto" to go by the chat template, "none" for not."""

    tools: str = "auto"
    reasoning: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server takes on, and how long it waits.

    `max_waiting` counts requests without a first token; `max_samples` the answers of one request (prompts x n); a
    request waits `max_load_wait_s` until its model is loaded; `shutdown_grace_s` is how long running answers may go on
    after Ctrl+C; a client that reads nothing for `stalled_client_s` is dropped. `requests_per_minute` holds for each
    API key, or client address without keys; None is no limit.
    """

    max_waiting: int = 256
    max_body_bytes: int = 32 * 1024 * 1024
    max_samples: int = 256
    ping_interval_s: float = 15.0
    stalled_client_s: float = 300.0
    max_load_wait_s: float = 300.0
    shutdown_grace_s: float = 5.0
    requests_per_minute: int | None = None
