"""The web page's sessions as browsers meet them: over the gateway, in a fleet that `corral up` runs."""

import gzip
import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.kit.page_sessions import SignedIn, ask_page
from tests.kit.waiting import wait_until

PASSWORD = "correct horse battery"
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"


def signed_in(up: Any) -> SignedIn:
    state = up.state()
    return SignedIn.at(state["url"], {"key": state["keys"]["admin"]})


def ask_model(up: Any, key: str) -> Any:
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return up.call("POST", "/v1/chat/completions", body, key=key)


def listed(up: Any, *arguments: str) -> list[dict[str, Any]]:
    outcome = up.corral("keys", "list", "--json", *arguments)
    assert outcome.returncode == 0, outcome.stderr
    return list(json.loads(outcome.stdout)["items"])


def test_a_browser_finds_the_page_and_a_program_the_card(answering_up: Any) -> None:
    url = answering_up.state()["url"]
    led = ask_page("GET", url + "/", headers={"Accept": BROWSER})
    assert (led.status, led.headers["location"]) == (302, "/ui/")
    page = ask_page("GET", url + led.headers["location"], headers={"Accept": BROWSER})
    assert (page.status, page.headers["cache-control"]) == (200, "no-store")
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    nonce = re.search(r"'nonce-([^']+)'", page.headers["content-security-policy"])
    assert nonce is not None
    assert f'nonce="{nonce[1]}"'.encode() in page.body
    for path in re.findall(r'(?:src|href)="(/ui/assets/[^"]+)"', page.body.decode()):
        file = ask_page("GET", url + path, headers={"Accept-Encoding": "gzip"})
        assert (file.status, file.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
        if file.headers.get("content-encoding") == "gzip":
            assert gzip.decompress(file.body)
        again = ask_page("GET", url + path, headers={"Accept-Encoding": "gzip", "If-None-Match": file.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        head = ask_page("HEAD", url + path)
        assert (head.status, head.body) == (200, b"")
    for path in ("/ui/models/llama-3.2", "/ui/../../pages.py", "/ui/%2e%2e/%2e%2e/pages.py"):
        view = ask_page("GET", url + path, headers={"Accept": BROWSER})
        assert (view.status, view.body[:15]) == (200, b"<!doctype html>"), path
    assert ask_page("GET", url + "/ui/../../home.html").status == 404
    card = ask_page("GET", url + "/", headers={"Accept": "*/*"})
    assert (card.status, b"corral keys create me" in card.body) == (200, True)


def test_somebody_signs_in_acts_and_signs_out(answering_up: Any) -> None:
    up = answering_up
    up.corral("users", "create", "alice", "--role", "operator", "--password-descriptor", "0", typed=PASSWORD)
    alice = SignedIn.at(up.state()["url"], {"name": "alice", "password": PASSWORD})
    assert (alice.session["user"], alice.session["scopes"]) == ("alice", ["operator"])
    nodes = alice.call("GET", "/api/v1/nodes").json()["items"]
    labels = f"/api/v1/nodes/{nodes[0]['id']}/drain"
    assert alice.call("POST", labels, {}, X_Corral_CSRF="").code == "csrf"
    assert alice.call("POST", labels, {}).status in (200, 204)
    assert alice.call("POST", f"/api/v1/nodes/{nodes[0]['id']}/resume", {}).status in (200, 204)
    assert alice.call("GET", "/api/v1/users").status == 403
    record = up.corral("events", "--json").stdout
    assert '"alice (session)"' in record
    assert '"session.opened"' in record
    assert alice.call("DELETE", "/api/v1/session").status == 204
    assert not alice.is_in()
    up.corral("users", "delete", "alice", "--yes")


def test_the_chat_asks_models_until_the_session_ends(answering_up: Any) -> None:
    up = answering_up
    page = signed_in(up)
    before = [each["id"] for each in listed(up)]
    made = page.call("POST", "/api/v1/session/inference-key").json()
    key = made["key"]
    assert ask_model(up, key).status == 200
    by_cookie = page.call("POST", "/v1/chat/completions", {"model": "chat", "messages": []})
    assert (by_cookie.status, by_cookie.code) == (401, "missing_api_key")
    assert up.call("GET", "/api/v1/nodes", key=key).status == 403
    assert [each["id"] for each in listed(up)] == before
    (chat,) = [each for each in listed(up, "--all") if each["session"] == page.session["id"]]
    assert (chat["name"], chat["scopes"]) == ("chat", ["inference"])
    assert page.call("DELETE", "/api/v1/session").status == 204
    assert ask_model(up, key).status == 401, "it is refused as soon as that is answered"
    assert not [each for each in listed(up, "--all") if each["session"]]


def test_a_session_that_ends_in_the_middle_of_an_act_is_told_and_signing_in_goes_on(answering_up: Any) -> None:
    up = answering_up
    page, admin = signed_in(up), signed_in(up)
    body = {"name": "made after all", "scopes": ["inference"]}
    assert admin.call("DELETE", f"/api/v1/sessions/{page.session['id']}").status == 204
    refused = page.call("POST", "/api/v1/keys", body)
    assert (refused.status, refused.code) == (401, "session_expired")
    assert "set-cookie" not in refused.headers, "another tab may have signed in meanwhile"
    again = signed_in(up)
    made = again.call("POST", "/api/v1/keys", body)
    assert made.status == 201
    assert again.call("DELETE", f"/api/v1/keys/{made.json()['id']}").status == 204
    assert [row["id"] for row in again.call("GET", "/api/v1/sessions").json() if row["is_own"]] == [again.session["id"]]


def test_wrong_keys_and_passwords_are_limited_over_the_gateway(answering_up: Any) -> None:
    url = f"{answering_up.state()['url']}/api/v1/session"
    guesses = [{"name": "carol", "password": "wrong password"}] * 12 + [{"key": f"corral_{n}"} for n in range(30)]
    replies = [ask_page("POST", url, guess) for guess in guesses]
    assert (replies[0].status, replies[0].code) == (401, "login_refused")
    assert (replies[11].status, replies[11].code) == (429, "too_many_logins")
    assert int(replies[11].headers["retry-after"]) >= 1
    assert replies[-1].status == 429
    assert not any("set-cookie" in reply.headers for reply in replies)


def test_old_clients_and_malformed_requests_are_answered(answering_up: Any) -> None:
    page = signed_in(answering_up)
    parts = urlsplit(page.url)

    def raw(head: str, body: str = "") -> str:
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as connection:
            connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        return answer.decode(errors="replace")

    session, cookie = "GET /api/v1/session HTTP/1.0", f"Cookie: {page.cookie}"
    assert raw(f"{session}\r\n{cookie}").startswith("HTTP/1.1 200")
    foreign = f"{session}\r\n{cookie}\r\nOrigin: {page.url}"  # no host is named, so no origin is its own
    assert raw(foreign).startswith("HTTP/1.1 403")
    assert raw(f"{foreign}\r\nHost: {parts.netloc}").startswith("HTTP/1.1 200")
    change = f"POST /api/v1/session/inference-key HTTP/1.0\r\n{cookie}\r\nX-Corral-CSRF: {page.session['csrf']}"
    assert raw(change).startswith("HTTP/1.1 201")
    assert raw(f"{session}\r\nCookie: a={'x' * 70_000}").startswith("HTTP/1.1 431")
    assert "session_expired" in raw(f"{session}\r\nCookie: corral_session={'x' * 30_000}")
    assert raw(f"{session}\r\n{cookie}\r\n{cookie}").startswith("HTTP/1.1 200")
    page.call("DELETE", "/api/v1/session")


def test_neither_tokens_nor_secrets_are_in_files_or_logs(answering_up: Any) -> None:
    up = answering_up
    page = signed_in(up)
    key = page.call("POST", "/api/v1/session/inference-key").json()["key"]
    secrets = [page.token, str(page.session["csrf"]), key]
    wait_until(lambda: '"session.opened"' in up.corral("events", "--json").stdout, "the record")
    files = [path for path in Path(up.data).rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in content], path
    assert not [secret for secret in secrets if secret in up.output]
    page.call("DELETE", "/api/v1/session")
