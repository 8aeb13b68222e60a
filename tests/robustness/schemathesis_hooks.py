"""What Schemathesis is told of this server: it loads this module by its name."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Name the model that there is, mostly: with any other name a request ends at the door."""
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) != 3:
        return {**body, "model": "scripted"}
    return body
