"""What backends find, and the text that an agent sees of it: as the official servers and clients write it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from afm.errors import ToolError
from afm.tools.base import Passage, ToolResult

NOTHING = "No results found."
SNIPPET_CHARS = 160
_URL_SEPARATOR = " | "
_MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\((\S+)\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A passage that a retriever found."""

    passage: Passage
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """One result of a web search."""

    title: str
    link: str
    snippet: str
    date: str | None = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One address that was to be read."""

    url: str
    state: Literal["ok", "missing", "failed"]
    """`missing`: the web says that there is nothing to read; `failed`: it did not say anything."""
    text: str
    error_kind: str | None = None
    """For `failed`, one of `afm.tools.base.ERROR_KINDS`."""


class Retriever(Protocol):
    """Finds passages."""

    async def retrieve(self, query: str, top_k: int) -> list[Found]:
        """Return the best passages; raises `ToolError`."""
        ...


class Searcher(Protocol):
    """Finds web pages."""

    async def search(self, query: str, num: int) -> list[Hit]:
        """Return the best results; raises `ToolError`."""
        ...


class Crawler(Protocol):
    """Reads web pages."""

    async def crawl(self, urls: Sequence[str], goal: str) -> ToolResult:
        """Return the pages' text, summarised towards the goal where it summarises; raises `ToolError`."""
        ...


def passages_result(passages: Sequence[Passage]) -> ToolResult:
    """Write passages as the official wiki tool does."""
    if not passages:
        return ToolResult(text=NOTHING, status="empty")
    docs = [
        f'Doc {number} (Title: "{passage.title}")\n{passage.text}'
        for number, passage in enumerate(passages, start=1)
    ]
    return ToolResult(text="\n\n".join(docs), status="ok")


def hits_result(hits: Sequence[Hit]) -> ToolResult:
    """Write search results as the official search tool does."""
    if not hits:
        return ToolResult(text=NOTHING, status="empty")
    shown = [_hit(number, hit) for number, hit in enumerate(hits, start=1)]
    text = f"Found {len(hits)} results:\n\n## Web Results\n" + "\n\n".join(shown)
    return ToolResult(text=text, status="ok")


def pages_result(pages: Sequence[Page]) -> ToolResult:
    """Write pages as the official crawl tool does; what could not be read is named.

    Raises:
        ToolError: nothing was read and at least one page failed: that is no observation of the web.
    """
    failed = [page for page in pages if page.state == "failed"]
    is_read = any(page.state == "ok" for page in pages)
    if failed and not is_read:
        kind = failed[0].error_kind or "failed"
        raise ToolError("; ".join(f"{page.url}: {page.text}" for page in failed), kind=kind)
    text = "\n\n".join(
        f"Page {number} [{page.url}]\n{_page_text(page)}"
        for number, page in enumerate(pages, start=1)
    )
    metadata = {f"failed {page.url}": page.error_kind or "failed" for page in failed}
    return ToolResult(text=text, status="ok" if is_read else "empty", metadata=metadata)


def addresses(argument: str) -> list[str]:
    """Split the argument of `crawl_page`, joined by ` | ` and perhaps written as Markdown links; repeats count once."""
    parts = [part.strip() for part in argument.split(_URL_SEPARATOR)]
    bare = [link[1] if (link := _MARKDOWN_LINK.fullmatch(part)) else part for part in parts]
    return list(dict.fromkeys(url for url in bare if url))


def _page_text(page: Page) -> str:
    if page.state == "failed":
        return f"This page could not be read: {page.error_kind}."
    return page.text


def _hit(number: int, hit: Hit) -> str:
    dated = [f"Date published: {hit.date}"] if hit.date else []
    named = [f"Source: {hit.source}"] if hit.source else []
    lines = [f"{number}. [{hit.title}]({hit.link})", *dated, *named, hit.link, hit.snippet]
    return "\n".join(lines)
