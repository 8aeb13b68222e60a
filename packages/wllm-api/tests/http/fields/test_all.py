"""No kind of request is without a table of cases."""

from pathlib import Path

from wllm_api.openapi import BODIES


def test_every_kind_of_request_has_its_table() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    for schema in set(BODIES.values()):
        # As the check of its completeness names it.
        assert any(f", {schema.__name__}, " in text for text in texts), f"{schema.__name__} has no table of cases"
