"""Several backends for one tool: the next one answers when those before it failed, and the metadata says so."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from afm.errors import ToolError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered(Generic[T]):
    """What a backend answered, and which one it was where that is not the first."""

    value: T
    metadata: dict[str, str]


async def first_answer(
    backends: Sequence[tuple[str, Callable[[], Awaitable[T]]]],
) -> Answered[T]:
    """Ask backends in order until one answers; that it knows nothing is an answer.

    Raises:
        ToolError: all failed; the kind is the first one's.
    """
    failures: list[tuple[str, ToolError]] = []
    for name, ask in backends:
        try:
            value = await ask()
        except ToolError as error:
            failures.append((name, error))
            continue
        return Answered(value=value, metadata=_metadata(name, failures))
    message = "; ".join(str(error) for _, error in failures)
    raise ToolError(message, kind=failures[0][1].kind) from failures[0][1]


def _metadata(name: str, failures: Sequence[tuple[str, ToolError]]) -> dict[str, str]:
    if not failures:
        return {}
    instead = ", ".join(f"{failed}: {error.kind}" for failed, error in failures)
    return {"backend": name, "instead_of": instead}
