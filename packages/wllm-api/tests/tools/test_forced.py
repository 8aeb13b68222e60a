"""The schemas of forced calls."""

from wllm_api.tools import arguments_schema, calls_schema


def test_arguments_are_an_object_in_any_case() -> None:
    assert arguments_schema({}) == {"type": "object"}
    assert arguments_schema({"type": "object", "required": ["a"]})["required"] == ["a"]


def test_references_move_with_their_schema() -> None:
    data = {"enum": ["#", {"$ref": "#"}]}
    tool = {"$defs": {"c": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/c"}, "b": data}}
    schema = calls_schema({"now": {}, "f": tool}, max_calls=1)
    assert schema["maxItems"] == 1
    call = schema["items"]["anyOf"][1]  # type: ignore[index]
    place = "#/items/anyOf/1/properties/parameters/$defs/c"
    assert call["properties"]["parameters"]["properties"] == {"a": {"$ref": place}, "b": data}
    assert call["properties"]["name"] == {"const": "f"}
