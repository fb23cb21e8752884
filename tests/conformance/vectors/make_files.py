"""Writes files.json: our own vectors of a worker's file routes, from the facts of LocalAI's protocol.

Bodies count upwards from the first byte of their range, so only their lengths are written down. Run
`python tests/conformance/vectors/make_files.py` after a change; the test plays the committed file.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

TEXT = {"Content-Type": "text/plain; charset=utf-8"}
JSON = {"Content-Type": "application/json"}
BYTES = {"Content-Type": "application/octet-stream"}
ROOT = "/srv/w1"
OTHER = "ab" * 32


def counting(start: int, end: int) -> bytes:
    return bytes(number % 256 for number in range(start, end))


WHOLE = sha256(counting(0, 3000)).hexdigest()
PART = sha256(counting(0, 1000)).hexdigest()


def ask(method: str, path: str, status: int, **rest: Any) -> dict[str, Any]:
    return {"direction": "test frontend -> LocalAI worker", "method": method, "path": path, "status": status, **rest}


def text(method: str, path: str, status: int, words: str, **rest: Any) -> dict[str, Any]:
    body = {} if method == "HEAD" else {"response": f"{words}\n"}
    headers = {**TEXT, **rest.pop("answers", {})}
    return ask(method, path, status, response_headers=headers, **body, **rest)


def put(key: str, length: int, *, hash: str = "", range: str = "") -> dict[str, Any]:
    named = {"X-Content-SHA256": hash, "Content-Range": f"bytes {range}" if range else ""}
    return {"path": f"/v1/files/{key}", "headers": {k: v for k, v in named.items() if v}, "body_length": length}


def stored(local: str, note: str, sent: dict[str, Any]) -> dict[str, Any]:
    path = sent.pop("path")
    answer = f'{{"local_path":"{ROOT}/{local}"}}\n'
    return ask("PUT", path, 200, response_headers=JSON, response=answer, note=note, **sent)


def refused(status: int, words: str, note: str, sent: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return text("PUT", sent.pop("path"), status, words, note=note, **sent, **rest)


def go_on(size: int, note: str, sent: dict[str, Any]) -> dict[str, Any]:
    headers = {"Range": f"bytes=0-{size - 1}", "X-File-Size": str(size), "Content-Length": "0"}
    return ask("PUT", sent.pop("path"), 308, response_headers=headers, note=note, **sent)


def elsewhere(start: int, size: int, note: str, sent: dict[str, Any]) -> dict[str, Any]:
    words = f"Content-Range start {start} does not match current file size {size}"
    total = sent["headers"]["Content-Range"].partition("/")[2]
    headers = {"Content-Range": f"bytes */{total}", "X-File-Size": str(size)}
    return refused(416, words, note, sent, answers=headers)


def head(key: str, local: str, size: int, note: str, *, finished: str = "", partial: str = "") -> dict[str, Any]:
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Length": str(size),
        "X-File-Size": str(size),
        "X-Local-Path": f"{ROOT}/{local}",
        **({"X-Content-Sha256": finished} if finished else {"X-Target-Sha256": partial}),
    }
    return ask("HEAD", f"/v1/files/{key}", 200, response_headers=headers, note=note)


def missing(key: str, note: str) -> dict[str, Any]:
    return text("HEAD", f"/v1/files/{key}", 404, "not found", note=note)


def bad_range(stated: str, words: str) -> dict[str, Any]:
    sent = put("models/v/bad.bin", 10)
    sent["headers"] = {"Content-Range": stated}
    return refused(400, words, f"Content-Range: {stated}", sent)


V = "models/v/v.bin"
MESSAGES = [
    missing(V, "before"),
    text("GET", f"/v1/files/{V}", 404, "file not found", note="GET before"),
    stored(V, "whole, no hash", put(V, 1000)),
    head(V, V, 1000, "whole", finished=PART),
    ask("GET", f"/v1/files/{V}", 200, response_headers={**BYTES, "Transfer-Encoding": "chunked"}, note="in chunks"),
    stored(V, "whole, right hash", put(V, 3000, hash=WHOLE)),
    stored(V, "whole, hash in capitals", put(V, 3000, hash=WHOLE.upper())),
    refused(400, f"sha256 mismatch: expected {OTHER} got {WHOLE}", "whole, wrong hash", put(V, 3000, hash=OTHER)),
    missing(V, "a wrong hash removes the file"),
    stored("models/v/empty", "empty", put("models/v/empty", 0)),
    head("models/v/empty", "models/v/empty", 0, "empty", finished=sha256(b"").hexdigest()),
    go_on(1000, "first range", put(V, 1000, hash=WHOLE, range="0-999/3000")),
    head(V, V, 1000, "partial", partial=WHOLE),
    elsewhere(999, 1000, "start below size", put(V, 1, hash=WHOLE, range="999-999/3000")),
    elsewhere(1001, 1000, "start above size", put(V, 1, hash=WHOLE, range="1001-1001/3000")),
    elsewhere(0, 1000, "start 0 again, same hash", put(V, 3000, hash=WHOLE, range="0-2999/3000")),
    go_on(2000, "second range, no hash", put(V, 1000, range="1000-1999/3000")),
    go_on(2100, "body longer than range", put(V, 500, hash=WHOLE, range="2000-2099/3000")),
    refused(
        400, "short body: got 50 expected 100", "short body", put(V, 50, hash=WHOLE.upper(), range="2100-2199/3000")
    ),
    head(V, V, 2150, "its bytes are kept", partial=WHOLE),
    stored(V, "last range", put(V, 850, hash=WHOLE, range="2150-2999/3000")),
    head(V, V, 3000, "complete", finished=WHOLE),
    elsewhere(0, 3000, "part of a finished file, same hash", put(V, 1000, hash=WHOLE, range="0-999/3000")),
    elsewhere(5, 3000, "inside a finished file", put(V, 1, hash=WHOLE, range="5-5/3000")),
    go_on(1000, "other hash: anew", put(V, 1000, hash=OTHER, range="0-999/3000")),
    head(V, V, 1000, "anew", partial=OTHER),
    refused(
        409,
        f"X-Content-SHA256 mismatch with in-progress upload (was {OTHER}, now {WHOLE}); restart from byte 0",
        "other hash, start > 0",
        put(V, 1000, hash=WHOLE, range="1000-1999/3000"),
    ),
    missing(V, "a conflict removes everything"),
    elsewhere(10, 0, "start > 0 of nothing", put(V, 1, hash=WHOLE, range="10-10/3000")),
    go_on(1000, "no hash", put(V, 1000, range="0-999/3000")),
    head(V, V, 1000, "a partial without a hash looks finished", finished=PART),
    refused(
        400,
        f"sha256 mismatch: expected {OTHER} got {WHOLE}",
        "completes with a wrong hash",
        put(V, 2000, hash=OTHER, range="1000-2999/3000"),
    ),
    missing(V, "a wrong hash at the end removes everything"),
    go_on(1000, "no hash, again", put(V, 1000, range="0-999/3000")),
    stored(V, "completes without a hash", put(V, 2000, range="1000-2999/3000")),
    head(V, V, 3000, "complete without a hash", finished=WHOLE),
    go_on(1000, "no hash over a finished file: anew", put(V, 1000, range="0-999/3000")),
    stored(V, "whole over a partial", put(V, 3000)),
    head(V, V, 3000, "whole over a partial", finished=WHOLE),
    bad_range("bytes 0-9", "invalid Content-Range: missing /total"),
    bad_range("bytes */10", "invalid Content-Range: missing - separator"),
    bad_range("items 0-9/10", 'invalid Content-Range: missing "bytes" prefix'),
    bad_range("bytes 0-9/*", 'invalid Content-Range total: strconv.ParseInt: parsing "*": invalid syntax'),
    bad_range("bytes x-9/10", 'invalid Content-Range start: strconv.ParseInt: parsing "x": invalid syntax'),
    bad_range("bytes 0-x/10", 'invalid Content-Range end: strconv.ParseInt: parsing "x": invalid syntax'),
    bad_range("bytes 5-4/10", "invalid Content-Range range: 5-4/10"),
    bad_range("bytes 0-10/10", "invalid Content-Range range: 0-10/10"),
    missing("models/v/bad.bin", "a bad range creates nothing"),
    text("HEAD", "/v1/files/", 400, "key is required", note="HEAD without a key"),
    text("GET", "/v1/files/", 400, "key is required", note="GET without a key"),
    text("PUT", "/v1/files/", 400, "key is required", body_length=1, note="PUT without a key"),
    text("HEAD", "/v1/files/models/v", 400, "", note="HEAD of a directory"),
    ask("GET", "/v1/files/models/v", 200, response_headers={**BYTES, "Content-Length": "0"}, note="GET of a directory"),
    refused(500, f"creating file: open {ROOT}/models/v: is a directory", "onto a directory", put("models/v", 1)),
    refused(400, "destination is a directory", "range onto a directory", put("models/v", 1, range="0-0/1")),
    text(
        "GET", "/v1/files/data/%2e%2e/models/v/v.bin", 400, f'path "{ROOT}/models/v/v.bin" is outside allowed directory'
    ),
    text("GET", "/v1/files/models/esc/passwd", 400, f'path "{ROOT}/models/esc/passwd" is outside allowed directory'),
    refused(400, f'path "{ROOT}/models/esc/z" is outside allowed directory', "through a link", put("models/esc/z", 1)),
    ask(
        "PUT",
        "/v1/files/models//v/v.bin",
        307,
        body_length=1,
        response_headers={"Location": "/v1/files/models/v/v.bin"},
    ),
    ask("GET", "/v1/files", 307, response_headers={"Location": "/v1/files/"}, note="without its slash"),
    stored("staging/ephemeral/inputs/0011aabb/in.wav", "an input", put("ephemeral/inputs/0011aabb/in.wav", 10)),
    stored("data/out/q.gguf", "an output", put("data/out/q.gguf", 10)),
    stored("models/a#b/c d%.bin", "an encoded key", put("models/a%23b/c%20d%25.bin", 10)),
    ask("POST", "/v1/files/temp", 200, response=f'{{"local_path":"{ROOT}/staging/localai-output-1.tmp"}}\n'),
    text("POST", "/v1/files/else", 404, "not found", note="POST elsewhere"),
    *(text(method, f"/v1/files/{V}", 405, "method not allowed") for method in ("DELETE", "PATCH", "OPTIONS")),
    ask(
        "GET",
        "/v1/files-list/models/v",
        200,
        response_headers=JSON,
        response='{"files":["empty","empty.sha256","v.bin","v.bin.sha256"]}\n',
        note="a listing",
    ),
    ask(
        "GET", "/v1/files-list/data/", 200, response='{"files":["out/q.gguf","out/q.gguf.sha256"]}\n', note="all of it"
    ),
    text("GET", "/v1/files-list/models/none", 404, "directory not found", note="no directory"),
    text("GET", f"/v1/files-list/{V}", 404, "directory not found", note="a file"),
    text("GET", "/v1/files-list/", 400, "key is required", note="listing without a key"),
    *(text(method, "/v1/files-list/models/v", 405, "method not allowed") for method in ("POST", "PUT", "HEAD")),
    text("GET", "/v1/nothing", 404, "404 page not found", note="no such route"),
    text("GET", f"/v1/files/{V}", 401, "unauthorized", headers={"Authorization": "<none>"}, note="no token"),
    text("HEAD", f"/v1/files/{V}", 401, "unauthorized", headers={"Authorization": "Bearer bad"}, note="wrong token"),
    ask("GET", "/healthz", 200, headers={"Authorization": "<none>"}, response="ok"),
    ask("HEAD", "/readyz", 200, headers={"Authorization": "<none>"}, response_headers={"Content-Length": "2"}),
    text("POST", "/healthz", 405, "method not allowed", headers={"Authorization": "<none>"}),
]

if __name__ == "__main__":
    lines = "[\n  " + ",\n  ".join(json.dumps(entry) for entry in MESSAGES) + "\n]"
    Path(__file__).with_name("files.json").write_text(f'{{"messages": {lines}}}\n', encoding="utf-8")
