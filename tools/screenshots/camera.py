"""Takes pictures of pages: small WebP files with names of their own, none larger than the docs should carry."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, Page, StorageState, expect

DESKTOP: Final = (1440, 900)
PHONE: Final = (390, 844)
MOST_BYTES: Final = 110_000
"""Of one picture; all of them together stay below three megabytes."""
QUALITIES: Final = (74, 62, 50)
MOST_HEIGHT: Final = 2200
PATIENCE_MILLISECONDS: Final = 30_000
Theme = Literal["light", "dark"]

expect.set_options(timeout=PATIENCE_MILLISECONDS)


class Camera:
    """Opens pages as somebody who is signed in, and writes what they show to a folder."""

    def __init__(self, browser: Browser, folder: Path, only: Sequence[str], looks: Path | None) -> None:
        self._browser = browser
        self._folder = folder
        self._only = only
        self._looks = looks
        """Where every picture is kept as PNG besides, to look at it closely."""
        self._signed_in: StorageState | None = None
        """One session for all visits: the fleet shall not look as if somebody signed in a hundred times."""
        self.taken: list[str] = []

    def wants(self, name: str) -> bool:
        return not self._only or any(word in name for word in self._only)

    @contextmanager
    def visit(
        self, url: str, path: str, *, key: str = "", size: tuple[int, int] = DESKTOP, theme: Theme = "light"
    ) -> Iterator[Page]:
        """A browser of somebody new, without what anybody left behind."""
        width, height = size
        context = self._browser.new_context(
            base_url=url,
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
            storage_state=self._session(url, key) if key else None,
        )
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        try:
            page = context.new_page()
            page.goto(path)
            yield page
        finally:
            context.close()

    def _session(self, url: str, key: str) -> StorageState:
        if self._signed_in is None:
            context = self._browser.new_context(base_url=url)
            answer = context.request.post("/api/v1/session", data={"key": key})
            if answer.status != 201:
                raise RuntimeError(f"signing in was answered with {answer.status}: {answer.text()}")
            self._signed_in = context.storage_state()
            context.close()
        return self._signed_in

    def take(self, page: Page, name: str) -> None:
        """In the best quality that is small enough, without the pointer, which is chance."""
        if not self.wants(name):
            return
        page.mouse.move(0, 0)
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        page.evaluate("() => document.fonts.ready")
        if self._looks is not None:
            _look(page, self._looks / f"{name}.png")
        picture = _small(page, name)
        (self._folder / f"{name}.webp").write_bytes(picture)
        self.taken.append(name)
        print(f"{name}.webp: {len(picture) / 1000:.0f} KB", flush=True)


def _look(page: Page, file: Path) -> None:
    """More of the page than fits a screen: it scrolls inside of its frame, so the frame must be larger."""
    size = page.viewport_size
    if size is None:
        raise RuntimeError("pages are opened with a size")
    height = page.evaluate(
        "() => Math.max(...[...document.querySelectorAll('main, dialog')].map((e) => e.scrollHeight))"
    )
    page.set_viewport_size({"width": size["width"], "height": min(max(size["height"], height + 110), MOST_HEIGHT)})
    page.screenshot(path=file, caret="hide")
    page.set_viewport_size(size)


def _small(page: Page, name: str) -> bytes:
    session = page.context.new_cdp_session(page)
    try:
        for quality in QUALITIES:
            answer = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})
            picture = base64.b64decode(answer["data"])
            if len(picture) <= MOST_BYTES:
                return picture
    finally:
        session.detach()
    raise RuntimeError(f"{name} has {len(picture):,} bytes; {MOST_BYTES:,} are allowed: show less of the page")
