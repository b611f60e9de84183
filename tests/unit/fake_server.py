"""An OpenAI-compatible server whose answers the test scripts, and a tokenizer of one id per character."""

import json
import threading
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


@dataclass
class Script:
    """What the server will answer, in order, and what it was asked."""

    answers: list[Answer]
    requests: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)


@contextmanager
def scripted_server(*answers: Answer) -> Iterator[tuple[Endpoint, Script]]:
    """Serve answers on a free port; the last one repeats."""
    script = Script(list(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def do_GET(self) -> None:
            self._answer(b"null")

        def _answer(self, raw: bytes) -> None:
            script.requests.append((self.path, json.loads(raw), dict(self.headers)))
            answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
            if answer.cut:
                self.close_connection = True
                return
            body = json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield Endpoint(base_url=f"http://127.0.0.1:{server.server_port}/v1", model=MODEL), script
    finally:
        server.shutdown()
        server.server_close()
