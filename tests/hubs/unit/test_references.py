"""What people type to name a model means exactly one thing, or is refused with what is wrong."""

from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.hubs.references import (
    FileReference,
    GalleryReference,
    HuggingFaceReference,
    ModelReference,
    OciReference,
    OllamaReference,
    UrlReference,
    parse_reference,
)


def hf(repository: str, path: str = "", revision: str = "main", quantisation: str = "") -> HuggingFaceReference:
    return HuggingFaceReference(repository=repository, path=path, revision=revision, quantisation=quantisation)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("hf://org/repo", hf("org/repo")),
        ("huggingface://org/repo/sub/file.gguf", hf("org/repo", "sub/file.gguf")),
        ("hf://org/repo@v1", hf("org/repo", revision="v1")),
        ("hf://org/repo/file.gguf@0123abc", hf("org/repo", "file.gguf", "0123abc")),
        ("hf://org/repo@v1/file.gguf", hf("org/repo", "file.gguf", "v1")),
        ("hf.co/org/repo:q4_k_m", hf("org/repo", quantisation="Q4_K_M")),
        ("hf.co/org/repo:latest", hf("org/repo")),
        ("https://huggingface.co/org/repo", hf("org/repo")),
        ("https://huggingface.co/org/repo/", hf("org/repo")),
        ("https://huggingface.co/org/repo/tree/dev", hf("org/repo", revision="dev")),
        ("https://huggingface.co/org/repo/blob/main/a%20b.gguf", hf("org/repo", "a b.gguf")),
        ("https://huggingface.co/org/repo/resolve/main/x.gguf?download=true", hf("org/repo", "x.gguf")),
        ("ollama://llama3", OllamaReference(name="llama3")),
        ("ollama://llama3:8b", OllamaReference(name="llama3", tag="8b")),
        ("ollama://me/mine:1", OllamaReference(name="mine", namespace="me", tag="1")),
        ("ollama://localhost:5000/me/mine", OllamaReference(name="mine", namespace="me", registry="localhost:5000")),
        ("https://ollama.com/library/llama3.2:1b", OllamaReference(name="llama3.2", tag="1b")),
        ("https://ollama.com/me/mine", OllamaReference(name="mine", namespace="me")),
        ("oci://quay.io/org/model:1", OciReference(image="quay.io/org/model:1")),
        ("quay.io/org/model:1", OciReference(image="quay.io/org/model:1")),
        ("ghcr.io/org/model", OciReference(image="ghcr.io/org/model")),
        ("docker.io/org/model@sha256:1", OciReference(image="docker.io/org/model@sha256:1")),
        ("https://example.org/a/b.gguf?x=1", UrlReference(url="https://example.org/a/b.gguf?x=1")),
        (
            "github:org/repo/a/b.yaml@master",
            UrlReference(url="https://raw.githubusercontent.com/org/repo/master/a/b.yaml"),
        ),
        ("file:///models/a%20b.gguf", FileReference(path=PurePath("/models/a b.gguf"))),
        ("./b.gguf", FileReference(path=PurePath("./b.gguf"))),
        ("smollm2", GalleryReference(name="smollm2")),
        ("localai@qwen3 8b", GalleryReference(gallery="localai", name="qwen3 8b")),
        (" smollm2\n", GalleryReference(name="smollm2")),
    ],
)
def test_a_reference_is_understood(text: str, reference: ModelReference) -> None:
    assert parse_reference(text) == reference


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must be one line"),
        ("a\nb", "must be one line"),
        ("x" * 3000, "must be one line"),
        ("hf://org", "must name a repository"),
        ("hf://../repo", "must name a repository"),
        ("hf://org/repo/../x", "without empty parts"),
        ("hf://org/repo//x", "without empty parts"),
        ("hf://org/repo@", "not a branch"),
        ("hf://org/repo@a/../b", "without empty parts"),
        ("hf.co/org/repo:a b", "not a quantisation"),
        ("ollama://", "must be like ollama://"),
        ("ollama://a/b/c/d", "must be like ollama://"),
        ("ollama://name:", "must be like ollama://"),
        ("https://ollama.com/localhost:5000/me/mine", "must be like ollama://"),
        ("https://ollama.com/localhost%3A5000/me/mine", "names another registry"),
        ("https://ollama.com/127.0.0.1:5000/me/mine", "names another registry"),
        ("oci://", "not complete"),
        ("quay.io/", "not complete"),
        ("https://user:secret@example.org/x", "must not carry a login"),
        ("https://", "no host"),
        ("https://example.org:99999/x", "no URL"),
        ("s3://bucket/x", "scheme s3:// is unknown"),
        ("github:org/repo", "must be like github:"),
        ("file://", "names no file"),
        ("gallery@", "not complete"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        parse_reference(text)
    assert "secret" not in caught.value.message


def test_the_file_name_of_a_url_is_decoded() -> None:
    assert UrlReference(url="https://example.org/a/b%20c.gguf?download=1").file_name == "b c.gguf"


@given(st.text(max_size=200) | st.text("hf:/.@ollamagithub-_%\\", max_size=60).map(lambda rest: f"hf://{rest}"))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidInput:
        return
    if isinstance(reference, HuggingFaceReference):
        assert ".." not in reference.path.split("/")
        assert ".." not in reference.repository.split("/")
