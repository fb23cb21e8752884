"""The tour through the page: every page in the states that people meet, one function for each part of the page."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from playwright.sync_api import Error, Page, expect

from screenshots.camera import DESKTOP, PHONE, Camera, Theme
from screenshots.fleet import BROKEN, COMING, ENGINE, HUGE, LOST, MODEL, WORKERS, PictureFleet

QUESTION: Final = "What is the capital of France? Answer in one sentence."


class View(NamedTuple):
    """How a page is looked at; `ending` is what the names of such pictures end with."""

    ending: str
    size: tuple[int, int]
    theme: Theme


PLAIN: Final = View("", DESKTOP, "light")
DARK: Final = View("-dark", DESKTOP, "dark")
SMALL: Final = View("-phone", PHONE, "light")
ALL: Final = (PLAIN, DARK, SMALL)


class Tour:
    """One way through the page. Stops that change the fleet come last."""

    def __init__(self, camera: Camera, fleet: PictureFleet) -> None:
        self._camera = camera
        self._fleet = fleet
        self.missed: list[str] = []
        """Stops that could not be made to the end, and why."""

    def go(self) -> None:
        stops: tuple[Callable[[], None], ...] = (
            self.sign_in,
            self.chat,
            self.backends,
            self.backend_plan,
            self.activity,
            self.fleet,
            self.node,
            self.drain_plan,
            self.models,
            self.rules,
            self.access,
            self.join,
            self.search,
            self.away,
        )
        for stop in stops:
            try:
                stop()
            except (AssertionError, Error) as error:
                self.missed.append(f"{stop.__name__}: {error}")

    @contextmanager
    def visit(self, path: str, view: View = PLAIN) -> Iterator[Page]:
        fleet = self._fleet
        with self._camera.visit(fleet.url, path, key=fleet.key, size=view.size, theme=view.theme) as page:
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            yield page

    def picture(self, name: str, path: str, ready: str, *views: View) -> None:
        """A page as it is once this text is there."""
        for view in views or (PLAIN,):
            if not self._camera.wants(name + view.ending):
                continue
            try:
                self._take(name + view.ending, path, ready, view)
            except (AssertionError, Error) as error:
                self.missed.append(f"{name}{view.ending}: {error}")

    def _take(self, name: str, path: str, ready: str, view: View) -> None:
        with self.visit(path, view) as page:
            if ready:
                found = page.get_by_role("main").get_by_text(re.compile(ready)).locator("visible=true")
                expect(found.first).to_be_visible()
            self._camera.take(page, name)

    def sign_in(self) -> None:
        if not self._camera.wants("sign-in"):
            return
        for view in (PLAIN, DARK):
            with self._camera.visit(self._fleet.url, "/ui/", size=view.size, theme=view.theme) as page:
                expect(page.get_by_role("heading", name="Sign in to Corral")).to_be_visible()
                if view is DARK:
                    page.get_by_label("Key", exact=True).fill("not-a-key")
                    page.get_by_role("button", name="Sign in", exact=True).click()
                    expect(page.get_by_role("alert")).to_be_visible()
                self._camera.take(page, "sign-in-refused" if view is DARK else "sign-in")

    def fleet(self) -> None:
        self.picture("fleet", "/ui/fleet?group=rack", "(unhealthy|offline)$", *ALL)
        self.picture("fleet-table", "/ui/fleet?view=table", "gpu-a", PLAIN, SMALL)
        self.picture("fleet-panel", f"/ui/fleet?node={self._fleet.node_id(WORKERS[0])}", "Open node")
        self.picture("fleet-nothing", "/ui/fleet?text=nowhere", "No node fits")

    def node(self) -> None:
        path = f"/ui/nodes/{self._fleet.node_id(WORKERS[0])}"
        self.picture("node", path, "Approved", *ALL)
        self.picture("node-backends", f"{path}?tab=backends", LOST)
        self.picture("node-logs", f"{path}?tab=logs", MODEL)
        self.picture("node-events", f"{path}?tab=events", "approved|Approved|registered", PLAIN, SMALL)
        self.picture("node-settings", f"{path}?tab=settings", "Labels|labels", PLAIN, SMALL)
        self.picture("node-gpus", f"/ui/nodes/{self._fleet.node_id('gpu-a-05')}", "L40S", PLAIN, DARK)
        self.picture("node-pending", f"/ui/nodes/{self._fleet.node_id('gpu-c-01')}", "Approve")

    def drain_plan(self) -> None:
        if not self._camera.wants("node-drain"):
            return
        with self.visit(f"/ui/nodes/{self._fleet.node_id(WORKERS[0])}") as page:
            page.get_by_role("button", name="Drain").click()
            dialog = page.get_by_role("dialog")
            confirm = dialog.get_by_role("button", name=re.compile(f"^Drain {WORKERS[0]}"))
            show = dialog.get_by_role("button", name="Show the plan")
            expect(confirm.or_(show).first).to_be_visible()
            if show.is_visible():
                show.click()
            expect(confirm).to_be_visible()
            self._camera.take(page, "node-drain")

    def models(self) -> None:
        self.picture("models", "/ui/models", "^Loaded$", *ALL)
        self.picture("models-gallery", "/ui/models?tab=gallery", "fits|Fits", PLAIN, SMALL)
        self.picture("model", f"/ui/models/{MODEL}", f"^{WORKERS[0]}$", *ALL)
        self.picture("model-why", f"/ui/models/{HUGE}?tab=why", "not enough RAM", *ALL)
        self.picture("model-failing", f"/ui/models/{BROKEN}", "can take it|×", PLAIN, DARK)
        self.picture("model-config", f"/ui/models/{MODEL}?tab=config", "context_size")
        self.picture("model-use", f"/ui/models/{MODEL}?tab=use", "curl", PLAIN, SMALL)
        self.picture("model-events", f"/ui/models/{MODEL}?tab=events", "")

    def chat(self) -> None:
        for view in ALL:
            if not self._camera.wants(f"chat{view.ending}"):
                continue
            with self.visit(f"/ui/chat?model={MODEL}", view) as page:
                page.get_by_role("textbox", name=re.compile("^Your question")).fill(QUESTION)
                page.get_by_role("button", name="Send").click()
                expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
                self._camera.take(page, f"chat{view.ending}")
        self.picture("chat-empty", "/ui/chat", "")

    def backends(self) -> None:
        self.picture("backends", "/ui/backends", ENGINE, *ALL)
        self.picture("backends-panel", f"/ui/backends?backend={ENGINE}", "Installed on|Install…")
        self.picture("backends-installed", "/ui/backends/installed", "gpu-a", PLAIN, SMALL)
        self.picture("backends-drift", "/ui/backends/drift", LOST)
        self.picture("backends-upgrades", "/ui/backends/upgrades", ENGINE)
        self.picture("backends-elsewhere", "/ui/backends/elsewhere", "")

    def backend_plan(self) -> None:
        for view in (PLAIN, SMALL):
            if not self._camera.wants(f"backends-plan{view.ending}"):
                continue
            with self.visit(f"/ui/backends?act=install&on={COMING}", view) as page:
                dialog = page.get_by_role("dialog")
                expect(dialog.get_by_role("button", name="Show the plan")).to_be_visible()
                self._camera.take(page, f"backends-plan-choose{view.ending}")
                dialog.get_by_role("button", name="Show the plan").click()
                expect(
                    dialog.get_by_role("button", name=re.compile(rf"^Install {COMING} on \d+ nodes$"))
                ).to_be_visible()
                self._camera.take(page, f"backends-plan{view.ending}")

    def activity(self) -> None:
        """Leaves an operation under way, which other pages show."""
        operation = self._fleet.operate("install", COMING)
        self.picture("operation", f"/ui/activity/{operation}", "Downloading", *ALL)
        self.picture("activity", "/ui/activity", COMING, *ALL)

    def rules(self) -> None:
        self.picture("rules", "/ui/rules", ENGINE, *ALL)
        self.picture("rules-panel", "/ui/rules?rule=speech-everywhere", "Applies|nodes")
        self.picture("rules-models", "/ui/rules/models", MODEL, PLAIN, SMALL)

    def access(self) -> None:
        self.picture("access", "/ui/access", "chat-app", *ALL)
        for tab, ready in {"users": "maria", "sessions": "", "joining": "", "audit": ""}.items():
            self.picture(f"access-{tab}", f"/ui/access/{tab}", ready)
        self.picture("access-audit", "/ui/access/audit", "", SMALL)

    def join(self) -> None:
        self.picture("join", "/ui/join", "Make the command", *ALL)
        if self._camera.wants("join-command"):
            with self.visit("/ui/join") as page:
                page.get_by_role("button", name="Make the command").click()
                expect(page.get_by_text(re.compile("corral worker|corral join")).first).to_be_visible()
                self._camera.take(page, "join-command")

    def search(self) -> None:
        if not self._camera.wants("search"):
            return
        with self.visit("/ui/fleet") as page:
            page.keyboard.press("/")
            page.get_by_role("dialog").get_by_role("searchbox").fill("gpu-b")
            expect(page.get_by_role("option").first).to_be_visible()
            self._camera.take(page, "search")

    def away(self) -> None:
        """Last of all: the frontend is killed while somebody looks."""
        if not self._camera.wants("frontend-away"):
            return
        with self.visit("/ui/fleet?group=rack") as page:
            expect(page.get_by_role("main").get_by_text("healthy").first).to_be_visible()
            self._fleet.loop.run(self._fleet.site.frontends[0].kill())
            expect(page.get_by_text(re.compile("does not answer|away since"))).to_be_visible()
            self._camera.take(page, "frontend-away")
