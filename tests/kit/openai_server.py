"""A small OpenAI-compatible server as a process of its own: an engine that somebody else runs.

    python -m tests.kit.openai_server PORT NAME [CERTIFICATE KEY]

It wants the bearer in ENGINE_KEY, and answers chats with its name. The last word of a chat may be a wish: `slowly` and
`die` make it do so in the middle of its answer.
"""

import http.server
import json
import os
import ssl
import sys
import time
from typing import Any, Final

MODEL: Final = "org/there:7b"
_SLOWLY_SECONDS: Final = 0.05


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._is_known():
            self._answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_known():
            return
        if asked["model"] != MODEL or self.path != "/v1/chat/completions":
            self._answer(404, {"error": {"message": f"no {asked['model']} at {self.path}"}})
            return
        text = asked["messages"][-1]["content"]
        words = [sys.argv[2], *text.split()]
        usage = {"prompt_tokens": len(words) - 1, "completion_tokens": len(words), "total_tokens": 2 * len(words) - 1}
        if asked.get("stream"):
            self._stream(words, usage)
            return
        message = {"role": "assistant", "content": " ".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._answer(200, {"object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage})

    def _stream(self, words: list[str], usage: dict[str, int]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in words:
            self._event({"choices": [{"index": 0, "delta": {"content": f"{word} "}}]})
            if words[-1] == "slowly":
                time.sleep(_SLOWLY_SECONDS)
            if words[-1] == "die":
                os._exit(1)
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, body: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps(body)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _is_known(self) -> bool:
        is_known = self.headers.get("Authorization") == f"Bearer {os.environ['ENGINE_KEY']}"
        if not is_known:
            self._answer(401, {"error": {"message": "the key is wrong"}})
        return is_known

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    _, port, _, *files = sys.argv
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler)
    if files:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
