"""Finding models: by name, by what they are for, page by page, and in spite of misspellings."""

import pytest

from corral.base.errors import InvalidInput, NotFound
from corral.galleries.gallery import GallerySource, IndexContent
from corral.galleries.model_catalogue import ModelCatalogue, ModelQuery, page_of, uses_of_entry
from corral.galleries.model_entries import GalleryModel


def entry(name: str, gallery: str = "one", **more: object) -> GalleryModel:
    return GalleryModel(name=name, gallery=gallery, **more)  # type: ignore[arg-type]


CHAT = entry(
    "Qwen3-4B",
    description="A model for chats.",
    tags=("LLM", "gguf"),
    license="apache-2.0",
    size="2.5GB",
    overrides={"known_usecases": ["FLAG_CHAT"], "backend": "llama-cpp"},
)
EMBEDDINGS = entry("bge-m3", tags=("embeddings",), license="MIT", size="600MB", overrides={"embeddings": True})
SPEECH = entry("kokoro", tags=("tts",), config={"backend": "kokoros"})
SECOND = entry("qwen3-4b", "two", tags=("llm",), size="9GB")
LARGE = entry("qwen3-32b", "two", tags=("llm",), description="Like Qwen3-4B, larger.", size="20GB")


@pytest.fixture
def catalogue() -> ModelCatalogue:
    return ModelCatalogue(
        [
            IndexContent(source=GallerySource(name="one", url="u"), entries=(CHAT, EMBEDDINGS, SPEECH)),
            IndexContent(source=GallerySource(name="two", url="v"), entries=(LARGE, SECOND)),
        ]
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("qwen3-4b", CHAT),
        (" QWEN3-4B ", CHAT),
        ("two@Qwen3-4b", SECOND),
        ("one@qwen3-4b", CHAT),
        ("one@qwen3-32b", None),
        ("nothing", None),
    ],
)
def test_a_name_is_looked_up_in_the_order_of_galleries(
    catalogue: ModelCatalogue, name: str, found: GalleryModel | None
) -> None:
    assert catalogue.entry(name) is found


def test_near_names_are_suggested(catalogue: ModelCatalogue) -> None:
    assert catalogue.near("kokkoro") == ("kokoro",)
    assert catalogue.near("qwen3") == ("Qwen3-4B", "qwen3-32b")
    with pytest.raises(NotFound, match=r"no gallery has a model 'kokorro'; did you mean kokoro\?"):
        catalogue.required("kokorro")
    with pytest.raises(NotFound, match=r"no gallery has a model 'zzzzzz'$"):
        catalogue.required("zzzzzz")
    assert catalogue.required("kokoro") is SPEECH


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (ModelQuery(), [CHAT, EMBEDDINGS, SPEECH, LARGE, SECOND]),
        (ModelQuery(term="qwen3-4b"), [CHAT, SECOND, LARGE]),
        (ModelQuery(term="qwen chats"), [CHAT]),
        (ModelQuery(term="two@"), [LARGE, SECOND]),
        (ModelQuery(tag="llm"), [CHAT, LARGE, SECOND]),
        (ModelQuery(license="apache"), [CHAT]),
        (ModelQuery(usecase="chat"), [CHAT, LARGE, SECOND]),
        (ModelQuery(usecase="Embeddings"), [EMBEDDINGS]),
        (ModelQuery(usecase="tts"), [SPEECH]),
        (ModelQuery(most_bytes=9_000_000_000), [CHAT, EMBEDDINGS, SECOND]),
        (ModelQuery(backend="kokoros"), [SPEECH]),
        (ModelQuery(gallery="TWO", term="32b"), [LARGE]),
        (ModelQuery(term="nothing has this"), []),
    ],
)
def test_models_are_found_by_what_they_are(
    catalogue: ModelCatalogue, query: ModelQuery, found: list[GalleryModel]
) -> None:
    assert catalogue.search(query) == found


def test_uses_that_an_entry_names_count_more_than_its_tags() -> None:
    assert uses_of_entry(entry("x", tags=("llm",), overrides={"known_usecases": ["vision"]})) == {"vision"}
    assert uses_of_entry(entry("x", tags=("llm",))) == {"chat", "completion"}
    assert uses_of_entry(entry("x")) == frozenset()


def test_lists_come_in_pages(catalogue: ModelCatalogue) -> None:
    page = page_of(catalogue.entries, page=2, per_page=2)
    assert (page.items, page.total, page.page, page.pages) == ((SPEECH, LARGE), 5, 2, 3)
    assert page_of(catalogue.entries, page=9, per_page=2).items == ()
    assert page_of((), page=1, per_page=2).pages == 0
    for page_number, per_page in ((0, 2), (1, 0), (1, 100_000)):
        with pytest.raises(InvalidInput):
            page_of(catalogue.entries, page=page_number, per_page=per_page)


def test_siblings_and_tags(catalogue: ModelCatalogue) -> None:
    assert list(catalogue.siblings(LARGE)) == ["qwen3-32b", "qwen3-4b"]
    assert catalogue.tags == ["embeddings", "gguf", "llm", "tts"]
