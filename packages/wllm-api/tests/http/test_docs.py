"""/docs: the whole API for people, from this server alone."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import httpx

from wllm_api.openapi import BODIES
from wllm_api.routes.docs import type_of
from wllm_api.settings import Access


class Page(HTMLParser):
    """The ids, the links and the tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            elif name == "href":
                self.links.add(value or "")
            elif name in ("src", "action", "srcset"):
                self.sources.append(value or "")


def test_every_route_and_field_is_there(client: httpx.Client) -> None:
    page = Page(client.get("/docs").text)
    schema = client.get("/openapi.json").json()
    for path, body in BODIES.items():
        assert f"post:{path}" in page.ids
        for name, field in body.model_fields.items():
            assert f"{body.__name__}.{field.alias or name}" in page.ids
    routes = {f"{method}:{path}" for path, operations in schema["paths"].items() for method in operations}
    assert routes == {name for name in page.ids if "/" in name}


def test_ids_are_ids(client: httpx.Client) -> None:
    page = Page(client.get("/docs").text)
    assert not [name for name in page.ids if not name or any(character.isspace() for character in name)]


def test_links_lead_somewhere(client: httpx.Client) -> None:
    page = Page(client.get("/docs").text)
    assert {link for link in page.links if not link.startswith("#")} == {"/openapi.json"}
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids


def test_page_loads_nothing(client: httpx.Client) -> None:
    answer = client.get("/docs")
    page = Page(answer.text)
    assert not page.sources
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "form", "object"})
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_descriptions_are_text(client: httpx.Client) -> None:
    assert "<b>" not in client.get("/docs").text.replace("<body>", "")
    assert "&lt;" in client.get("/docs").text


def test_docs_ask_for_a_key(start_server: Any) -> None:
    with start_server(Access(api_keys=("k",))) as guarded:
        assert guarded.get("/docs").status_code == 401


def test_types_in_words() -> None:
    assert type_of({"type": "array", "items": {"$ref": "#/x/A"}}) == [("array of ", None), ("A", "A")]
    assert type_of({"anyOf": [{"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, {"type": "null"}]}) == [
        ("integer (>= 0, < 9)", None),
        (" | ", None),
        ("null", None),
    ]
    assert type_of({"enum": ["a", 1]}) == [('"a" | 1', None)]
    assert type_of({}) == [("any", None)]
