"""`page`: what the web page weighs, how soon and how smoothly it works, and what open pages cost control.

A real Chromium opens the page of a real frontend; nodes are simulated in a process of their own and report other
figures with each heartbeat, so that a known number of rows changes every second. Of the largest fleet most nodes are
only stored: thousands of simulated ones would take minutes to join and to leave, which is not what is measured.
"""

import asyncio
import gzip
import tempfile
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, BrowserContext, CDPSession, Page

from bench.fanout_site import Site, open_site
from bench.page_readers import reading_pages
from bench.readings import MEGABYTE, ProcessorShare, resident_of
from bench.report import Row, Table, figure, percentile
from bench.say import say
from bench.stored_nodes import store_nodes
from corral.frontend.api import static
from tests.kit.browser import open_async_browser
from tests.kit.simulated_fleet import Join

KILOBYTE: Final = 1000
SLOW_PROCESSOR: Final = 4
"""How many times slower the page's processor is made for the time until it can be used."""
CHANGES_PER_SECOND: Final = 200
_PATIENCE_MILLISECONDS: Final = 120_000
_STREAM: Final = "/api/v1/live"
_PLAIN_FILES: Final = (".js", ".css")

WATCH_LONG_TASKS: Final = """
window.longTasks = [];
new PerformanceObserver(list => {
  for (const task of list.getEntries()) window.longTasks.push([task.startTime, task.duration]);
}).observe({ type: 'longtask', buffered: true });
"""
SHOWN: Final = "document.body.innerText.replace(/\\s+/g, ' ')"
"""The words on the page, however they are laid out."""
SHOWS_ALL: Final = f"count => {SHOWN}.includes(`${{count.toLocaleString('en')}} healthy`)"
UNTIL_USABLE: Final = """async () => {
  const shown = performance.now();
  const last = () => Math.max(shown, ...window.longTasks.map(([start, duration]) => start + duration));
  while (performance.now() - last() < 500) await new Promise(resolve => setTimeout(resolve, 50));
  return last();
}"""
"""When it could be used: everything is there, and no long task ended later than that within half a second."""
FRAMES: Final = """milliseconds => new Promise(resolve => {
  const frames = [];
  window.longTasks.length = 0;
  const began = performance.now();
  let before = began;
  const count = now => {
    frames.push(now - before);
    before = now;
    if (now - began < milliseconds) requestAnimationFrame(count);
    else resolve({ frames, longest: Math.max(0, ...window.longTasks.map(([, duration]) => duration)) });
  };
  requestAnimationFrame(count);
})"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated, and how long it is watched."""

    few: int = 2
    many: int = 1000
    most: int = 10_000
    seconds: float = 60.0
    """Of frames with `many` nodes; what the page holds in memory is looked at before and after."""
    most_seconds: float = 60.0
    """Of frames with `most` nodes."""
    idle_seconds: float = 60.0
    pages: int = 50
    changes: int = 40
    """How many changes are followed from the database to the screen."""


async def page(scale: Scale) -> list[Table]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        async with open_async_browser() as browser:
            for count in (scale.few, scale.many, scale.most):
                place = Path(folder) / str(count)
                place.mkdir()
                async with open_site("sqlite", place) as site:
                    rows += await _measure(site, browser, count, scale)
    return [Table(title="The web page", rows=rows)]


async def _measure(site: Site, browser: Browser, count: int, scale: Scale) -> list[Row]:
    """Everything that is measured with a fleet of this size."""
    is_small, beating = count == scale.few, min(count, scale.many)
    if count > beating:
        await store_nodes(site.database_url, count - beating)
    interval = 10.0 if is_small else max(beating / CHANGES_PER_SECOND, 1.0)
    await site.fleet.do(Join(count=beating, interval_seconds=interval, varies=not is_small))
    say(f"page: {count:,} nodes have joined")
    if is_small:
        return [
            *await _weights(site, browser),
            *await _starts(site, browser, count, goal=1.5),
            *await _idle_requests(site, browser, scale),
            *await _changes(site, browser, scale),
        ]
    is_most = count == scale.most
    rows = [] if is_most else await _starts(site, browser, count, goal=2.5)
    rows += await _frames(site, browser, count, scale.most_seconds if is_most else scale.seconds, is_most=is_most)
    return rows if is_most else rows + await _open_pages(site, count, scale)


@asynccontextmanager
async def _visit(site: Site, browser: Browser, *, count: int, slow: int = 1) -> AsyncIterator[tuple[Page, CDPSession]]:
    """Somebody who is signed in looks at the fleet; returns when all nodes are shown."""
    context = await _signed_in(site, browser)
    try:
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        await page.add_init_script(WATCH_LONG_TASKS)
        await session.send("Emulation.setCPUThrottlingRate", {"rate": slow})
        await page.goto("/ui/fleet", wait_until="commit")
        await page.wait_for_function(SHOWS_ALL, arg=count)
        yield page, session
    finally:
        await context.close()


async def _signed_in(site: Site, browser: Browser) -> BrowserContext:
    context = await browser.new_context(base_url=site.frontend.url, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(_PATIENCE_MILLISECONDS)
    answer = await context.request.post("/api/v1/session", data={"key": site.frontend.admin_key})
    if answer.status != 201:
        raise RuntimeError(f"signing in was answered with {answer.status}: {await answer.text()}")
    return context


# What it weighs.


async def _weights(site: Site, browser: Browser) -> list[Row]:
    context = await _signed_in(site, browser)
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page = await context.new_page()
    await page.goto("/ui/fleet")
    await page.wait_for_function(SHOWS_ALL, arg=2)
    sizes = await page.evaluate(
        "() => performance.getEntriesByType('resource').map(entry => [entry.name, entry.encodedBodySize])"
    )
    await context.close()
    first = sum(size for name, size in sizes if name.partition("?")[0].endswith(_PLAIN_FILES))
    files = [path for path in (Path(str(static.__path__[0])) / "ui").rglob("*") if path.is_file()]
    packed = sum(len(gzip.compress(path.read_bytes())) for path in files)
    wheel = sum(len(zlib.compress(path.read_bytes())) for path in files)
    elsewhere = [url for url in requests if not url.startswith(site.frontend.url)]
    return [
        figure("first page, scripts and styles, gzip", first / KILOBYTE, "KB", at_most=220),
        figure("first page, requests", len(requests), "", at_most=15),
        figure("first page, requests to other hosts", len(elsewhere), "", at_most=0),
        figure("whole page, gzip", packed / KILOBYTE, "KB", at_most=500),
        figure("growth of the wheel", wheel / MEGABYTE, "MB", at_most=2),
    ]


# How soon and how smoothly it works.


async def _starts(site: Site, browser: Browser, count: int, *, goal: float) -> list[Row]:
    """The middle one of three, each with an empty cache."""
    seconds = []
    for _ in range(3):
        async with _visit(site, browser, count=count, slow=SLOW_PROCESSOR) as (page, _session):
            seconds.append(await page.evaluate(UNTIL_USABLE) / 1000)
    say(f"page: usable with {count:,} nodes after {seconds} s")
    what = f"usable with {count:,} nodes, processor {SLOW_PROCESSOR} × slower"
    return [figure(what, sorted(seconds)[1], "s", at_most=goal)]


async def _frames(site: Site, browser: Browser, count: int, seconds: float, *, is_most: bool) -> list[Row]:
    async with _visit(site, browser, count=count) as (page, session):
        await page.evaluate(UNTIL_USABLE)
        before = await _heap(session)
        seen: dict[str, Any] = await page.evaluate(FRAMES, seconds * 1000)
        grown = await _heap(session) - before
    frames = seen["frames"]
    what = f"{count:,} nodes, {CHANGES_PER_SECOND} changes/s"
    p95, p99 = percentile(frames, 0.95), percentile(frames, 0.99)
    say(f"page: {what}: p95 {p95:.1f} ms, p99 {p99:.1f} ms, longest task {seen['longest']:.0f} ms")
    rows = [
        figure(f"{what}: frame, p95", p95, "ms", at_most=34 if is_most else 20),
        figure(f"{what}: frame, p99", p99, "ms", at_most=None if is_most else 50),
        figure(f"{what}: longest task", seen["longest"], "ms", at_most=None if is_most else 100),
    ]
    return [*rows, figure(f"{what}: heap growth in {seconds:g} s", grown / MEGABYTE, "MB", at_most=10)]


async def _heap(session: CDPSession) -> float:
    """Bytes that scripts still hold after everything that nobody needs was collected."""
    await session.send("HeapProfiler.collectGarbage")
    usage: dict[str, float] = await session.send("Runtime.getHeapUsage")
    return usage["usedSize"]


async def _idle_requests(site: Site, browser: Browser, scale: Scale) -> list[Row]:
    """Two tabs of one browser, nobody touches them."""
    async with _visit(site, browser, count=scale.few) as (page, _session):
        other = await page.context.new_page()
        await other.goto("/ui/activity")
        await other.wait_for_load_state("load")
        await page.bring_to_front()
        await page.evaluate(UNTIL_USABLE)
        asked: list[str] = []
        page.context.on("request", lambda request: asked.append(request.url))
        await asyncio.sleep(scale.idle_seconds)
    streams = [url for url in asked if _STREAM in url]
    others = len(asked) - len(streams)
    return [
        figure("two idle tabs: requests", others * 60 / scale.idle_seconds, "/min", at_most=0),
        figure("two idle tabs: streams opened again", len(streams), "", at_most=0),
    ]


async def _changes(site: Site, browser: Browser, scale: Scale) -> list[Row]:
    """From the moment in which a drain was stored to the moment in which it is on the screen."""
    nodes = list(await site.frontend.nodes())
    waits = []
    async with _visit(site, browser, count=scale.few) as (page, _session):
        for number in range(scale.changes):
            act = "drain" if number % 2 == 0 else "resume"
            words = f"{scale.few - 1} healthy" if act == "drain" else f"{scale.few} healthy"
            await site.frontend.call("POST", f"/api/v1/nodes/{nodes[0]}/{act}", {})
            stored = time.time()
            shown = await page.evaluate(
                f"""async words => {{
                  while (!{SHOWN}.includes(words)) await new Promise(requestAnimationFrame);
                  return Date.now() / 1000;
                }}""",
                words,
            )
            waits.append(max(shown - stored, 0.0))
    return [figure("from the database to the screen, p95", percentile(waits, 0.95), "s", at_most=1.0)]


# What open pages cost.


async def _open_pages(site: Site, count: int, scale: Scale) -> list[Row]:
    """Readers that ask for what the page of the fleet asks for; a browser each would be another measurement."""
    without = await _share(site, scale.idle_seconds)
    before = resident_of(site.control)
    async with reading_pages(site.frontend.url, site.frontend.admin_key, scale.pages) as counted:
        with_pages = await _share(site, scale.idle_seconds)
        grown = resident_of(site.control) - before
    say(f"page: {scale.pages} readers got {counted.frames:,} frames, {counted.bytes / MEGABYTE:.1f} MB")
    what = f"{scale.pages} open pages, {count:,} nodes, {CHANGES_PER_SECOND} changes/s"
    return [
        figure(f"{what}: control without them", without, "% of a core"),
        figure(f"{what}: control more with them", max(with_pages - without, 0.0), "% of a core", at_most=10),
        figure(f"{what}: memory for each", max(grown, 0) / scale.pages / MEGABYTE, "MB", at_most=1),
    ]


async def _share(site: Site, seconds: float) -> float:
    share = ProcessorShare(site.control)
    await asyncio.sleep(seconds)
    return share.percent()
