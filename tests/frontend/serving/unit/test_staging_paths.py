"""Which files a model needs on its node, under what keys, and what their paths become there."""

from pathlib import PurePath

from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.serving.staging.decide.paths import (
    base_of,
    moved,
    moved_path,
    needed_paths,
    own_key,
    shared_key,
    without_paths,
)

MODELS = PurePath("/srv/models")
THERE = PurePath("/node/models/m")
NAMES = st.text(st.characters(exclude_characters="/\0\n", exclude_categories=["Cs"]), min_size=1, max_size=12)
PATHS = st.lists(NAMES.filter(lambda name: name not in (".", "..", ".corral") and name == name.strip()), min_size=1)


def test_all_fields_that_may_name_files_are_looked_at_and_the_models_own_comes_first() -> None:
    options = {
        "ModelFile": "/srv/models/llm/m.gguf",
        "ModelPath": "/srv/models",
        "MMProj": "/srv/models/llm/proj.gguf",
        "LoraAdapter": "lora.gguf",
        "LoraAdapters": ["one.gguf"],
        "Options": ["vae_path:/srv/models/vae", "use_jinja:true", "plain"],
        "Tokenizer": "org/name",
    }

    assert needed_paths(options, MODELS) == [
        "llm/m.gguf",
        "llm/proj.gguf",
        "lora.gguf",
        "llm/lora.gguf",
        "org/name",
        "llm/org/name",
        "one.gguf",
        "llm/one.gguf",
        "vae",
        "true",
        "llm/true",
    ]


def test_the_parts_of_a_split_model_and_the_settings_of_a_voice_come_along() -> None:
    split = needed_paths({"ModelFile": "/srv/models/big-00002-of-00003.gguf"}, MODELS)
    voice = needed_paths({"ModelFile": "/srv/models/v.onnx"}, MODELS)

    assert split == ["big-00002-of-00003.gguf", "big-00001-of-00003.gguf", "big-00003-of-00003.gguf"]
    assert voice == ["v.onnx", "v.onnx.json"]


def test_neither_the_directory_itself_nor_what_is_outside_is_ever_meant() -> None:
    options = {
        "ModelFile": "/srv/models",
        "LoraBase": "../secret",
        "LoraAdapter": "/etc/passwd",
        "Options": ["a:.", "b:./", "c:", "d:/srv/models/", "e:.corral/store", "f:x/../../y"],
    }

    assert needed_paths(options, MODELS) == []


def test_paths_of_ours_become_those_of_the_node_and_others_stay() -> None:
    options = {
        "ModelFile": "/srv/models/m.gguf",
        "ModelPath": "/srv/models",
        "Model": "m.gguf",
        "MMProj": "",
        "LoraAdapter": "lora.gguf",
        "LoraAdapters": ["/srv/models/l.gguf", "/elsewhere/l.gguf"],
        "Options": ["vae:/srv/models/v", "a:b:c", "plain"],
        "Threads": 4,
    }

    assert moved(options, MODELS, THERE) == {
        "ModelFile": "/node/models/m/m.gguf",
        "ModelPath": "/node/models/m",
        "Model": "m.gguf",
        "MMProj": "",
        "LoraAdapter": "lora.gguf",
        "LoraAdapters": ["/node/models/m/l.gguf", "/elsewhere/l.gguf"],
        "Options": ["vae:/node/models/m/v", "a:b:c", "plain"],
        "Threads": 4,
    }


def test_only_paths_of_ours_are_left_out_where_no_file_is() -> None:
    options = {
        "ModelFile": "/srv/models/org/name",
        "ModelPath": "/srv/models",
        "Model": "org/name",
        "MMProj": "/elsewhere/eye.gguf",
        "Tokenizer": "org/tokenizer",
        "LoraAdapters": ["/srv/models/l.gguf", "org/adapter"],
        "Options": ["vae:/srv/models/v"],
        "Threads": 4,
    }

    assert without_paths(options, MODELS) == {
        "Model": "org/name",
        "MMProj": "/elsewhere/eye.gguf",
        "Tokenizer": "org/tokenizer",
        "LoraAdapters": ["org/adapter"],
        "Options": ["vae:/srv/models/v"],
        "Threads": 4,
    }


def test_names_that_no_path_can_hold_get_a_folder_all_the_same() -> None:
    assert own_key("org/model 1", "a/b") == "models/org/model 1/a/b"
    odd = [own_key(name, "f") for name in ("..", "a/../b", "/a", "a//b", "x" * 200 + "ü")]
    assert len(set(odd)) == len(odd)
    assert all(key.startswith("models/model-") and key.endswith("/f") and key.count("/") == 2 for key in odd)


@given(PATHS, PATHS)
def test_where_a_file_is_tells_what_stands_for_the_models_directory(base: list[str], path: list[str]) -> None:
    there, below = PurePath("/", *base), str(PurePath(*path))

    assert base_of(str(there / below), below) == there
    assert base_of(str(there / "other" / "name"), f"{below}x") is None
    assert base_of(below, below) is None
    assert moved_path(str(MODELS / below), MODELS, there) == str(there / below)
    assert shared_key(below) == f"models/{below}"


@given(st.dictionaries(st.sampled_from(["ModelFile", "MMProj", "LoraAdapter", "LoraBase"]), st.text(max_size=40)))
def test_whatever_is_written_what_is_needed_lies_below_the_models_directory(options: dict[str, str]) -> None:
    for path in needed_paths(options, MODELS):
        assert not PurePath(path).is_absolute()
        assert ".." not in PurePath(path).parts
        assert path != "."
