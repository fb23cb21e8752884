"""The web page as browsers get it from control: whatever build is in the folder."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.frontend.api import web_page
from corral.frontend.api.web_page import PageFiles
from tests.kit.asgi import AsgiAnswer
from tests.kit.frontend import Frontend

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
SCRIPT = b"console.log('hello');\n" * 200
INDEX = b'<!doctype html><meta property="csp-nonce" nonce="__CSP_NONCE__"><style nonce="__CSP_NONCE__"></style>'


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A build of the page in place of the one that is shipped."""
    folder = tmp_path / "page"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_bytes(INDEX)
    (folder / "favicon.svg").write_bytes(b"<svg/>" * 500)
    (folder / "assets" / "index-abc.js").write_bytes(SCRIPT)
    files = PageFiles(folder)
    monkeypatch.setattr(web_page, "_page_files", lambda: files)
    return folder


def policy(answer: AsgiAnswer) -> dict[str, str]:
    parts = (part.strip().partition(" ") for part in answer.headers["content-security-policy"].split(";"))
    return {name: value for name, _, value in parts}


@pytest.mark.parametrize("path", ["/", "/ui"])
async def test_browsers_are_led_to_the_page_and_programs_get_the_card(frontend: Frontend, path: str) -> None:
    led = await frontend.call("GET", path, key="", accept=BROWSER)
    assert (led.status, led.headers["location"], led.headers["vary"]) == (302, "/ui/", "Accept")
    assert led.headers["cache-control"] == "no-store"
    for accept in ("*/*", "application/json", "", "text/html;q=0, */*", "text/html; q=0.00"):
        card = await frontend.call("GET", path, key="", accept=accept)
        assert (card.status, b"corral keys create me" in card.body) == (200, True), accept


async def test_the_page_that_is_shipped_is_served(frontend: Frontend) -> None:
    answer = await frontend.call("GET", "/ui/", key="", accept=BROWSER)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["cache-control"] == "no-store"
    assert web_page.NONCE_MARK not in answer.body
    for name in re.findall(rb'(?:src|href)="/ui/(assets/[^"]+)"', answer.body):
        assert (await frontend.call("GET", f"/ui/{name.decode()}", key="")).status == 200


async def test_each_page_has_a_nonce_of_its_own_and_loads_from_here_alone(frontend: Frontend, built: Path) -> None:
    nonces = set()
    for _ in range(3):
        answer = await frontend.call("GET", "/ui/", key="", accept=BROWSER)
        allowed = policy(answer)
        nonce = re.fullmatch(r"'self' 'nonce-([A-Za-z0-9_-]{43})'", allowed["style-src"])
        assert nonce is not None
        assert answer.body.count(f'nonce="{nonce[1]}"'.encode()) == 2
        nonces.add(nonce[1])
        assert (allowed["default-src"], allowed["script-src"]) == ("'none'", "'self'")
        assert {allowed[name] for name in ("connect-src", "font-src")} == {"'self'"}
        assert {allowed[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert len(nonces) == 3


@pytest.mark.parametrize(
    "path",
    ["", "fleet", "nodes/gpu-1", "models/llama-3.2", "models/org%2Fname", "nodes/gpu.local", "models/a.json", "a b"],
)
async def test_every_view_is_the_page(frontend: Frontend, built: Path, path: str) -> None:
    answer = await frontend.call("GET", f"/ui/{path}", key="", accept=BROWSER)
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    assert b"<!doctype html>" in answer.body


@pytest.mark.parametrize("path", ["assets/gone-abc.js", "gone.js", "favicon.ico", "assets/", "assets/../index.html"])
async def test_a_file_that_is_not_there_is_not_found(frontend: Frontend, built: Path, path: str) -> None:
    answer = await frontend.call("GET", f"/ui/{path}", key="", accept="*/*")
    assert answer.status == 404
    assert b"<!doctype html>" not in answer.body


@pytest.mark.parametrize(
    "path", ["../../../../../etc/passwd", "..%2f..%2f..%2fpages.py", "%2e%2e/%2e%2e/pages.py", "%2Fetc%2Fpasswd"]
)
async def test_no_path_leads_out_of_the_folder(frontend: Frontend, built: Path, path: str) -> None:
    for accept in (BROWSER, "*/*"):
        answer = await frontend.call("GET", f"/ui/{path}", key="", accept=accept)
        assert b"root:" not in answer.body
        assert b"OpenAPI" not in answer.body
        assert answer.status in (200, 404)
        if answer.status == 200:
            assert b"<!doctype html>" in answer.body


async def test_assets_are_kept_forever_and_compressed_for_who_can(frontend: Frontend, built: Path) -> None:
    plain = await frontend.call("GET", "/ui/assets/index-abc.js", key="")
    assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert (plain.body, plain.headers["vary"]) == (SCRIPT, "Accept-Encoding")
    assert "content-encoding" not in plain.headers
    assert "nonce" not in plain.headers["content-security-policy"]
    packed = await frontend.call("GET", "/ui/assets/index-abc.js", key="", accept_encoding="br, gzip;q=0.5")
    assert (packed.headers["content-encoding"], gzip.decompress(packed.body)) == ("gzip", SCRIPT)
    assert packed.headers["content-length"] == str(len(packed.body))
    assert packed.headers["etag"] != plain.headers["etag"]
    refused = await frontend.call("GET", "/ui/assets/index-abc.js", key="", accept_encoding="gzip;q=0")
    assert refused.body == SCRIPT


async def test_what_the_browser_has_is_not_sent_again(frontend: Frontend, built: Path) -> None:
    for path in ("assets/index-abc.js", "favicon.svg"):
        first = await frontend.call("GET", f"/ui/{path}", key="", accept_encoding="gzip")
        tag = first.headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await frontend.call("GET", f"/ui/{path}", key="", accept_encoding="gzip", if_none_match=known)
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        other = await frontend.call("GET", f"/ui/{path}", key="", accept_encoding="gzip", if_none_match='"other"')
        assert other.status == 200
    assert first.headers["cache-control"] == "no-cache"


async def test_nothing_is_taken_at_the_page(frontend: Frontend, built: Path) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert (await frontend.call(method, "/ui/", {}, key="")).status == 405


async def test_a_folder_without_a_build_is_told(frontend: Frontend, built: Path) -> None:
    (built / "index.html").unlink()
    answer = await frontend.call("GET", "/ui/", key="", accept=BROWSER)
    assert (answer.status, b"make ui" in answer.body) == (404, True)
