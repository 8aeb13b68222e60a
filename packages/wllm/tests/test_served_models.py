"""The models of `wllm serve`: from the command line and from a file."""

from pathlib import Path

import pytest

from wllm.cli import build_parser, main
from wllm.served_models import ModelsError, ModelToServe, models_to_serve


def models(*arguments: str) -> list[ModelToServe]:
    return models_to_serve(build_parser().parse_args(["serve", *arguments]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "モデル.toml"


def test_several_on_the_command_line_share_its_flags(tmp_path: Path) -> None:
    first, second = models("org/one", str(tmp_path / "two.gguf"), "--max-model-len", "99", "--keep-alive", "5m")
    assert (first.names, second.names) == (("org/one",), ("two",))
    assert first.settings["model"] == "org/one"
    for model in (first, second):
        assert (model.settings["max_model_len"], model.keep_alive_s) == (99, 300.0)


def test_one_model_may_have_several_names() -> None:
    (model,) = models("org/one", "--served-model-name", "a", "--served-model-name", "b")
    assert model.names == ("a", "b")


def test_a_file_has_models_with_flags_of_their_own(file: Path) -> None:
    file.write_text(
        """
        [chat]
        model = "org/one"
        names = ["gpt-4o-mini", "チャット"]
        max-model-len = 4096
        gpu-memory-utilization = 0.5
        enable-prefix-caching = false
        override-generation-config = {temperature = 0.5}
        keep-alive = "-1"
        tool-parser = "hermes"

        ["org/two"]
        model = "-odd.gguf"
        task = "embed"
        keep-alive = 60
        """,
        encoding="utf-8",
    )
    chat, other = models("--models-file", str(file), "--dtype", "float16", "--max-model-len", "512")
    assert chat.names == ("chat", "gpt-4o-mini", "チャット")
    assert (chat.settings["max_model_len"], chat.settings["gpu_memory_utilization"]) == (4096, 0.5)
    assert chat.settings["enable_prefix_caching"] is False
    assert chat.settings["override_generation_config"] == {"temperature": 0.5}
    assert (chat.keep_alive_s, chat.parsers.tools) == (float("inf"), "hermes")
    assert (other.names, other.settings["model"], other.settings["task"]) == (("org/two",), "-odd.gguf", "embed")
    assert (other.settings["max_model_len"], other.keep_alive_s, other.parsers.tools) == (512, 60.0, "auto")
    assert other.settings["enable_prefix_caching"] is True
    assert chat.settings["dtype"] == other.settings["dtype"] == "float16"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no models"),
        ("[a", "is not TOML"),
        ("a = 1", "a in .* is not a table"),
        ("[a]\nnames = []", "has no model"),
        ("[a]\nmodel = 3", "has no model"),
        ("[qwen2.5-0.5b]\nmodel = 'm'", r"\[qwen2\] in .* a name with a dot needs quotes: \[\"qwen2\.5-0\.5b\"\]"),
        ("[qwen-2.5]\nmodel = 'm'\n[qwen-2.6]\nmodel = 'n'", r"needs quotes: \[\"qwen-2\.5\"\]"),
        ("[a]\nmodel = 'm'\n[a.5.b]\nmodel = 'n'", r"\[a\] in .* holds another model.*needs quotes: \[\"a\.5\.b\"\]"),
        ("[a]\noverride-generation-config = {temperature = 0}", "has no model"),
        ('[a]\nmodel = "D:\\models\\m"', "is not TOML.*backslashes in single quotes"),
        ('[a]\nmodel = "D:\\new\\tiny"', r"model of .* is 'D:\\n.* with control characters.*single quotes"),
        ("['']\nmodel = 'm'", "The model m .* is called ''"),
        ("[a]\nmodel = 'm'\nnames = 'b'", "not a list of names"),
        ("[a]\nmodel = 'm'\nport = 8001", "port of .* is not a setting of a model"),
        ("[a]\nmodel = 'm'\nmax_model_len = 1", "max_model_len of .* is not a setting of a model.*max-model-len"),
        (
            "[a]\nmodel = 'm'\nmax-model-len = 'long'",
            r"\[a\] in .*: argument --max-model-len: invalid int value: 'long'",
        ),
        ("[a]\nmodel = 'm'\n[b]\nmodel = 'n'\nmax-model-len = -5", r"\[b\] in .*: max_model_len must .* got -5"),
        ("[a]\nmodel = 'm'\nmax-model-len = true", "invalid int value: 'true'"),
        ("[a]\nmodel = 'm'\nenforce-eager = 1", "enforce-eager of .* is 1; use true or false"),
        ("[a]\nmodel = 'm'\nkeep-alive = 'soon'", "--keep-alive: soon must be a number of seconds or a duration"),
        ("[a]\nmodel = 'm'\ntask = 'sing'", "--task: invalid choice"),
        ("[a]\nmodel = 'm'\nhelp = true", "help of .* is not a setting"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_of(
    file: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ModelsError, match=said) as error:
        models("--models-file", str(file))
    assert str(file) in str(error.value)
    assert main(["serve", "--models-file", str(file)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_is_not_there_or_not_utf_8_is_told_of(file: Path) -> None:
    with pytest.raises(ModelsError, match="cannot be read: No such file"):
        models("--models-file", str(file))
    file.write_text("[é]\nmodel = 'm'", encoding="cp1252")
    with pytest.raises(ModelsError, match=r"is not UTF-8: .* Save it as UTF-8"):
        models("--models-file", str(file))


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_as_programs_on_windows_write_it(file: Path, mark: str, end: str) -> None:
    file.write_bytes((mark + f"['één']{end}model = 'D:\\new\\één\u3000b'{end}").encode())
    (model,) = models("--models-file", str(file))
    assert (model.names, model.settings["model"]) == (("één",), "D:\\new\\één\u3000b")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "--models-file", "f"], "a is given beside --models-file f"),
        (["--served-model-name", "n", "--models-file", "f"], "--served-model-name n is given beside"),
        (["a", "b", "--served-model-name", "n"], "--served-model-name n names one model, and there are 2"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(ModelsError, match=said):
        models(*arguments)


def test_two_models_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "org/one", "org/one"]) == 1
    assert "Two models are called 'org/one'" in capsys.readouterr().err


def test_models_in_two_places_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "one", "--port", "8001", "two"])
    assert "wllm serve does not know two; name all models in one place" in capsys.readouterr().err
