"""What an endpoint answered: its text, and what it cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True, slots=True)
class Spent:
    """What a client has used so far."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, usage: Mapping[str, Any]) -> None:
        """Count one answer's `usage` block."""
        self.calls += 1
        self.prompt_tokens += int(usage.get("prompt_tokens") or 0)
        self.completion_tokens += int(usage.get("completion_tokens") or 0)


def chat_text(answer: Any) -> str | None:
    """Return the text of a chat answer; None where it has none: openai checks no field of what it returns."""
    choices = getattr(answer, "choices", None)
    message = (
        getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
    )
    text = getattr(message, "content", None)
    return text if isinstance(text, str) else None
