"""R30: whatever the bytes are, the client learns what is wrong with them."""

import pytest

from wllm_api.bodies import parse_object
from wllm_api.http_errors import InvalidRequest

GOOD = '{"a": "ä龜"}'


def test_utf8() -> None:
    assert parse_object(GOOD.encode()) == {"a": "ä龜"}


def test_byte_order_mark_is_taken() -> None:
    assert parse_object(b"\xef\xbb\xbf" + GOOD.encode()) == {"a": "ä龜"}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no body"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object, not an array"),
        (b"null", "must be a JSON object, not null"),
        (b'"x"', "must be a JSON object, not a string"),
        (b"3", "must be a JSON object, not a number"),
        (b'{"a": "' + "你好".encode("gbk") + b'"}', "not valid UTF-8"),
        (GOOD.encode("utf-16"), "not valid UTF-8"),
        (GOOD.encode("utf-16-le"), "not valid"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": "\\ud83e"}', "surrogate"),
        (b'{"\\udc00": 1}', "surrogate"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_bad_bytes(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_object(raw)


def test_whole_surrogate_pair_is_taken() -> None:
    assert parse_object(b'{"a": "\\ud83e\\udee0"}') == {"a": "🫠"}
