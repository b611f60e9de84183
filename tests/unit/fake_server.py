"""An OpenAI-compatible server whose answers the test scripts, and a tokenizer of one id per character."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from afm.chat import Completion, Sampling
from afm.endpoint import Endpoint

MODEL = "policy"
END = 0
"""Id of the end of the turn."""


class CharTokenizer:
    """One id per character; id 0 ends a turn."""

    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def encode(self, text: str, *, add_special_tokens: bool, **_options: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int], **options: bool) -> str:
        assert options == {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return "".join(chr(number) for number in ids)

    def apply_chat_template(self, messages: Any, **_options: Any) -> list[int]:
        return self.encode(messages[0]["content"], add_special_tokens=False)


def written(text: str, *, stop: str | None = None, finish: str = "stop") -> Completion:
    """A completion with this text; without `stop`, a finished one ends the turn."""
    ids = [ord(character) for character in text]
    if finish == "stop" and stop is None:
        ids.append(END)
    return Completion(token_ids=tuple(ids), finish_reason=finish, stop_reason=stop)


@dataclass
class FakeCompleter:
    """Completes by a function of the prompt's text."""

    reply: Callable[[str, Sampling], Completion]
    asked: list[tuple[str, Sampling]] = field(default_factory=list)

    async def complete(self, prompt_ids: Sequence[int], sampling: Sampling) -> list[Completion]:
        text = "".join(chr(number) for number in prompt_ids)
        self.asked.append((text, sampling))
        return [self.reply(text, sampling)] * sampling.num_samples


@dataclass
class Answer:
    """One HTTP answer."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Close the connection instead."""
    raw: bytes | None = None
    """Body as it is, in place of `body`."""
    missing: int = 0
    """Bytes at the end of the body that are announced and never sent."""
    wait_s: float = 0.0
    """Before it answers."""


@dataclass
class Script:
    """What the server will answer, in order, and what it was asked."""

    answers: list[Answer]
    requests: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    reply: Callable[[Any], Answer] | None = None
    """Answers by the request's body, in place of `answers`."""

    def next(self, body: Any) -> Answer:
        """Return the next answer; the last one repeats."""
        if self.reply is not None and body is not None:
            return self.reply(body)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def said(text: str | None) -> Answer:
    """A chat answer with this text."""
    message = {"role": "assistant", "content": text}
    return Answer(
        body={
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
    )


def listed() -> Answer:
    """The answer to `GET /models`."""
    return Answer(body={"data": [{"id": MODEL, "root": "/models/it"}]})


@contextmanager
def scripted_server(
    *answers: Answer, reply: Callable[[Any], Answer] | None = None
) -> Iterator[tuple[Endpoint, Script]]:
    """Serve answers on a free port; the last one repeats. With `reply`, posts are answered by it."""
    script = Script(list(answers), reply=reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def do_GET(self) -> None:
            self._answer(b"null")

        def _answer(self, raw: bytes) -> None:
            asked = json.loads(raw)
            script.requests.append((self.path, asked, dict(self.headers)))
            answer = script.next(asked)
            time.sleep(answer.wait_s)
            if answer.cut:
                self.close_connection = True
                return
            body = json.dumps(answer.body).encode() if answer.raw is None else answer.raw
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) - answer.missing])
            self.close_connection = self.close_connection or answer.missing > 0

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield Endpoint(base_url=f"http://127.0.0.1:{server.server_port}/v1", model=MODEL), script
    finally:
        server.shutdown()
        server.server_close()
