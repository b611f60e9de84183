"""A server over real sockets that misbehaves on purpose, and answers well when told to."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Writer = asyncio.StreamWriter
GOOD_HEADERS = {"Content-Type": "application/json"}


@dataclass
class Faulty:
    """How the server answers now, and what it was asked."""

    port: int = 0
    fault: str = "none"
    good: Callable[[str, bytes], tuple[bytes, str]] = lambda _path, _body: (
        b"{}",
        "application/json",
    )
    """Path and body of a request to the right answer and its content type."""
    good_after: int | None = None
    """So many requests are answered by the fault, then all well."""
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fault_now(self) -> str:
        if self.good_after is not None and len(self.asked) > self.good_after:
            return "none"
        return self.fault


def message(status: str, body: bytes, *, length: int | None = None, **headers: str) -> bytes:
    """Return a whole HTTP answer; `length` may lie."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\nConnection: close\r\n\r\n").encode() + body


async def _never(_writer: Writer) -> None:
    await asyncio.sleep(30)


async def _drip(writer: Writer) -> None:
    """Slow loris: a byte now and then, so that no read ever waits long."""
    for byte in message("200 OK", b" " * 2000, Content_Type="application/json"):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def _flood(writer: Writer) -> None:
    """An endless body without a length."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(b"<p>more</p>" * 10_000)
        await writer.drain()


JSON = {"Content_Type": "application/json"}
BYTES = {
    "status_429": message("429 Too Many Requests", b"slow down", Retry_After="0.1"),
    "status_500": message("500 Internal Server Error", b'{"organic": []}', **JSON),
    "status_503": message("503 Service Unavailable", b"", Retry_After="0.1"),
    "status_401": message("401 Unauthorized", b"no credits left"),
    "cut_body": message("200 OK", b'{"organic": []', length=900, **JSON),
    "cut_json": message("200 OK", b'{"organic": [', **JSON),
    "hang_up": b"",
    "garbage": b"\x00\x01\x02 nothing like HTTP\r\n\r\n",
    "no_body": message("200 OK", b""),
    "null": message("200 OK", b"null", **JSON),
    "other_object": message("200 OK", b'{"message": "quota exceeded"}', **JSON),
    "other_types": message(
        "200 OK", b'{"organic": "none", "result": {}, "success": 3, "choices": []}', **JSON
    ),
    "fenced": message(
        "200 OK", b'```json\n{"organic": [], "result": [[]], "success": true}\n```', **JSON
    ),
    "html": message("200 OK", "<p>Bitte später wiederkommen</p>".encode("latin-1"), **JSON),
    "latin_1": message("200 OK", '{"organic": [], "x": "é"}'.encode("latin-1"), **JSON),
}
SLOW: dict[str, Callable[[Writer], Awaitable[None]]] = {
    "never": _never,
    "slow_loris": _drip,
    "flood": _flood,
}
FAULTS = (*BYTES, *SLOW)


async def _serve(faulty: Faulty, reader: asyncio.StreamReader, writer: Writer) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        path, headers, body = await _request(reader)
        faulty.asked.append((path, body))
        faulty.headers.append(headers)
        fault = faulty.fault_now()
        if fault in SLOW:
            await SLOW[fault](writer)
        elif fault != "none":
            writer.write(BYTES[fault])
        else:
            content, mime = faulty.good(path, body)
            status = "200 OK" if content else "404 Not Found"
            writer.write(message(status, content, Content_Type=mime))
        await writer.drain()
    writer.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in head[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return head[0].split()[1], headers, body


@contextmanager
def faulty_server(
    good: Callable[[str, bytes], tuple[bytes, str]] | None = None,
) -> Iterator[Faulty]:
    """Serve on a free port until the block ends."""
    faulty = Faulty(good=good) if good else Faulty()
    loop = asyncio.new_event_loop()

    async def start() -> Any:
        async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
            with contextlib.suppress(asyncio.CancelledError):  # the server ends
                await _serve(faulty, reader, writer)

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    server = loop.run_until_complete(start())
    faulty.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield faulty
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def good_backend(path: str, body: bytes) -> tuple[bytes, str]:
    """Answer as the official servers, Serper and an OpenAI-compatible model do; unknown things are unknown."""
    asked = json.loads(body) if body else {}
    knows = "unknown" not in json.dumps(asked)
    answers: dict[str, Any] = {
        "/retrieve": {
            "result": [
                [{"document": {"contents": '"Lyon"\nA city.'}, "score": 1.5}] * knows
                for _ in asked.get("queries", ())
            ]
        },
        "/search": {
            "organic": [
                {
                    "title": "Lyon",
                    "link": "https://lyon.example",
                    "snippet": "A city.",
                    "position": 1,
                }
            ]
            * knows,
            "credits": 1,
        },
        "/crawl_page": {
            "success": True,
            "obs": "Page 1: a city.",
            "error_message": None,
            "processing_time": 0.1,
        },
        "/v1/chat/completions": {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "A red square."},
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        },
    }
    if path in answers:
        return json.dumps(answers[path]).encode(), "application/json"
    if path == "/robots.txt":
        return b"User-agent: *\nDisallow: /private\n", "text/plain"
    return b"", "text/plain"
