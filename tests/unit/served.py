"""Stages that serve a model, with a scripted policy in the server's place."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.fake_server import CharTokenizer, FakeCompleter


def serve_with(
    monkeypatch: pytest.MonkeyPatch, stage: ModuleType, client: FakeCompleter
) -> list[Path]:
    """Let a stage module use `client`; returns the models that it had served."""
    served: list[Path] = []

    def fake(
        model: Path, _params: Any, work: Callable[[Any], Awaitable[Any]], **_files: Path
    ) -> Any:
        served.append(model)

        async def run() -> Any:
            return await work(client)

        return asyncio.run(run())

    monkeypatch.setattr(stage, "with_served_model", fake)
    monkeypatch.setattr(stage, "load_tokenizer", lambda _folder: CharTokenizer())
    return served
