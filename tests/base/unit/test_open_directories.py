"""Walks from an open directory: what they reach, and that nothing leads them out, not even while they are under way."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from corral.base.open_directories import Confined, DirectoryUnusable, DirectoryWalk, PathEscapes, look, opened_directory

Walker = Callable[[Path, Sequence[str]], tuple[int, int]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with something to steal beside it."""
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "victim").write_text("untouched")
    folder = tmp_path / "root"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "file").write_text("x")
    return folder


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


def by_image(root: Path, parts: Sequence[str]) -> tuple[int, int]:
    """As archives are unpacked: nothing of the machine around the root has a name."""
    with DirectoryWalk(os.open(root, os.O_RDONLY)) as walk:
        walk.enter(parts)
        status = os.fstat(walk.here)
    return status.st_dev, status.st_ino


def by_key(root: Path, parts: Sequence[str]) -> tuple[int, int]:
    """As files of a peer are reached: in a directory of the machine."""
    with Confined(root).reach((*parts, "new"), root) as place:
        status = os.fstat(place.directory)
    return status.st_dev, status.st_ino


def by_unlinked_key(root: Path, parts: Sequence[str]) -> tuple[int, int]:
    with Confined(root).reach_unlinked((*parts, "new"), root) as place:
        status = os.fstat(place.directory)
    return status.st_dev, status.st_ino


FOLLOWING = [by_image, by_key]
EVERY = [*FOLLOWING, by_unlinked_key]


def identity(path: Path) -> tuple[int, int]:
    return path.stat().st_dev, path.stat().st_ino


@pytest.mark.parametrize("walker", EVERY)
def test_directories_are_entered_by_their_names(walker: Walker, root: Path) -> None:
    assert walker(root, ()) == identity(root)
    assert walker(root, ("a", "b")) == identity(root / "a" / "b")


@pytest.mark.parametrize("walker", EVERY)
def test_what_is_missing_and_what_is_a_file_are_told_apart(walker: Walker, root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        walker(root, ("a", "missing"))
    with pytest.raises(NotADirectoryError):
        walker(root, ("file",))


@pytest.mark.parametrize("target", ["a/b", "./a//b/", "a/../a/b", "a/b/../b", "second"])
@pytest.mark.parametrize("walker", FOLLOWING)
def test_a_link_that_stays_inside_is_followed(walker: Walker, root: Path, target: str) -> None:
    (root / "second").symlink_to("a/b")
    (root / "link").symlink_to(target)

    assert walker(root, ("link",)) == identity(root / "a" / "b")


@pytest.mark.parametrize("target", ["..", "../outside", "a/../../outside", "a/b/../../../outside", "up/outside"])
@pytest.mark.parametrize("walker", EVERY)
def test_a_link_that_climbs_out_is_refused(walker: Walker, root: Path, target: str) -> None:
    (root / "up").symlink_to("a/../..")
    (root / "link").symlink_to(target)

    with pytest.raises(PathEscapes):
        walker(root, ("link",))


@pytest.mark.parametrize("walker", EVERY)
def test_links_in_a_circle_are_refused(walker: Walker, root: Path) -> None:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")

    with pytest.raises(PathEscapes):
        walker(root, ("one",))


@pytest.mark.parametrize("walker", FOLLOWING)
def test_forty_links_in_a_row_are_followed_and_one_more_is_refused(walker: Walker, root: Path) -> None:
    (root / "link0").symlink_to("a")
    for number in range(1, 41):
        (root / f"link{number}").symlink_to(f"link{number - 1}")

    assert walker(root, ("link39",)) == identity(root / "a")
    with pytest.raises(PathEscapes):
        walker(root, ("link40",))


def test_an_absolute_link_of_an_image_starts_at_its_root(root: Path) -> None:
    (root / "a" / "link").symlink_to("/a/b")
    (root / "a" / "out").symlink_to(root.parent / "outside")

    assert by_image(root, ("a", "link")) == identity(root / "a" / "b")
    with pytest.raises(FileNotFoundError):
        by_image(root, ("a", "out"))


def test_an_absolute_link_of_the_machine_must_lead_back_into_the_directory(root: Path) -> None:
    (root / "link").symlink_to(root / "a" / "b")
    (root / "out").symlink_to(root.parent / "outside")
    (root / "beside").symlink_to(f"{root}-and-more")
    (root / "back").symlink_to("../root/a/b")

    assert by_key(root, ("link",)) == by_key(root, ("back",)) == identity(root / "a" / "b")
    for name in ("out", "beside"):
        with pytest.raises(PathEscapes):
            by_key(root, (name,))


def test_a_link_of_an_image_cannot_leave_it_by_its_own_name(root: Path) -> None:
    """The directory is renamed when the image is whole, and the name may be anybody's then."""
    (root / "back").symlink_to("../root/a")

    with pytest.raises(PathEscapes):
        by_image(root, ("back",))


@pytest.mark.parametrize("parts", [("link", "x"), ("a", "deep", "x")])
def test_a_walk_without_links_refuses_each_on_the_way(root: Path, parts: tuple[str, ...]) -> None:
    (root / "link").symlink_to("a")
    (root / "a" / "deep").symlink_to("b")

    with pytest.raises(PathEscapes), Confined(root).reach_unlinked(parts, root):
        pass


def test_the_last_name_of_a_walk_without_links_may_be_one(root: Path) -> None:
    (root / "a" / "link").symlink_to("/nowhere")

    with Confined(root).reach_unlinked(("a", "link"), root) as place:
        assert (os.fstat(place.directory).st_ino, place.name) == ((root / "a").stat().st_ino, "link")


def test_a_last_name_that_is_a_link_is_followed_to_where_it_leads(root: Path) -> None:
    (root / "link").symlink_to("a/b/new")

    with Confined(root).reach(("link",), root / "link") as place:
        assert (os.fstat(place.directory).st_ino, place.name) == ((root / "a" / "b").stat().st_ino, "new")
        assert place.path == root / "link"


def test_directories_that_are_missing_are_made_and_counted(root: Path) -> None:
    (root / "link").symlink_to("a")
    with DirectoryWalk(os.open(root, os.O_RDONLY), make_mode=0o700) as walk:
        walk.enter(("link", "c", "d"))
        with walk.detach() as directory:
            assert directory.parts == ("a", "c", "d")

    assert walk.made == 2
    assert (root / "a" / "c" / "d").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_becomes_a_link_under_way_is_not_left(root: Path) -> None:
    with DirectoryWalk(os.open(root, os.O_RDONLY), make_mode=0o700) as walk:
        walk.enter(("a",))
        (root / "a").rename(root / "moved")
        (root / "a").symlink_to(root.parent / "outside")

        walk.enter(("b", "new"))

    assert (root / "moved" / "b" / "new").is_dir()
    assert sorted(os.listdir(root.parent / "outside")) == ["b", "victim"]
    assert os.listdir(root.parent / "outside" / "b") == []


@pytest.mark.parametrize("is_link_to_outside", [True, False])
def test_a_link_that_appears_between_two_looks_is_walked_by_hand(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_link_to_outside: bool
) -> None:
    """The name is swapped at the moment at which it is opened: the kernel is told not to follow it."""
    real_open, target = os.open, root.parent / "outside" if is_link_to_outside else Path("moved")

    def swapped(name: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name == "a" and not (root / "a").is_symlink():
            (root / "a").rename(root / "moved")
            (root / "a").symlink_to(target)
        return real_open(name, flags, mode, dir_fd=dir_fd)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swapped)

    if is_link_to_outside:
        with pytest.raises(PathEscapes):
            by_key(root, ("a", "b"))
    else:
        assert by_key(root, ("a", "b")) == identity(root / "moved" / "b")


def test_going_up_leads_to_where_the_walk_came_from_and_not_to_where_the_directory_is_now(root: Path) -> None:
    with DirectoryWalk(os.open(root, os.O_RDONLY)) as walk:
        walk.enter(("a", "b"))
        (root / "a" / "b").rename(root.parent / "outside" / "stolen")

        walk.enter(("..",))

        assert os.fstat(walk.here).st_ino == (root / "a").stat().st_ino


def test_a_directory_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    confined = Confined(tmp_path / "missing")

    with pytest.raises(DirectoryUnusable, match="missing cannot be used"), confined.reach((), tmp_path):
        pass


def test_looking_at_a_name_and_opening_it_never_follows_a_link(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "outside")
    with Confined(root).reach(("new",), root) as place:
        status = look(place.directory, "link")
        assert status is not None
        assert status.st_ino == (root / "link").lstat().st_ino
        assert look(place.directory, "missing") is None
        assert look(place.directory, "x" * 300) is None
        with pytest.raises(NotADirectoryError), opened_directory("link", place.directory):
            pass
