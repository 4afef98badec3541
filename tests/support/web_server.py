"""A web server on the loopback that counts what it sends, and can be told to misbehave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


class Server(ThreadingHTTPServer):
    """Serves `files` by path; `answers` replaces the answer for a path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes | Path] = {}
        self.tags: dict[str, str] = {}
        self.answers: dict[str, Callable[[Any], None]] = {}
        self.ranges = True
        self.requests: list[tuple[str, str, str]] = []
        """(method, path, Range) of each request."""
        self.sent = 0
        """Bytes of all bodies."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server, path = self.server, self.path.partition("?")[0].lstrip("/")
        asked = self.headers.get("Range", "")
        server.requests.append((self.command, path, asked))
        if path in server.answers:
            server.answers[path](self)
            return
        if path not in server.files:
            self.answer(404, b"")
            return
        content = server.files[path]
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        tag = {"ETag": f'"{server.tags.get(path, "1")}"'}
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        if found is None or not server.ranges:
            self.answer(200, _part(content, 0, size), **tag)
            return
        begin, end = int(found[1]), min(int(found[2]) + 1, size)
        self.answer(206, _part(content, begin, end), **tag, **{"Content-Range": f"bytes {begin}-{end - 1}/{size}"})

    def do_HEAD(self) -> None:
        self.server.requests.append(("HEAD", self.path, ""))
        self.answer(405, b"")

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.send(body)

    def send(self, body: bytes) -> None:
        self.server.sent += len(body)
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _part(content: bytes | Path, begin: int, end: int) -> bytes:
    if isinstance(content, bytes):
        return content[begin:end]
    with content.open("rb") as file:
        file.seek(begin)
        return file.read(end - begin)


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def unstated(handler: Any) -> None:
    """An answer without end, whose size is not stated."""
    handler.server.ranges = False
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.send(b"10000\r\n" + bytes(65536) + b"\r\n")
