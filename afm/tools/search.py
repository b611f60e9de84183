"""`wiki_search`, `web_search` and `crawl_page` straight from an index, rendered as the official ones do."""

from collections.abc import Sequence
from pathlib import Path

from afm.errors import UserError
from afm.params.agents import AgentParams
from afm.params.tools import SandboxParams
from afm.tools.answers import (
    SNIPPET_CHARS,
    Hit,
    Page,
    addresses,
    hits_result,
    pages_result,
    passages_result,
)
from afm.tools.base import Tool, ToolResult
from afm.tools.fetch import MISSING
from afm.tools.index import Index, open_index, page_url


def make_wiki_search(params: AgentParams, _sandbox: SandboxParams, index: Path | None) -> Tool:
    """Search that shows whole passages (official wiki server)."""
    opened = require_index(index, "wiki_search")

    def wiki_search(argument: str) -> ToolResult:
        return passages_result(opened.search(argument, params.top_k))

    return wiki_search


def make_web_search(params: AgentParams, _sandbox: SandboxParams, index: Path | None) -> Tool:
    """Search that shows titles, links and snippets (official search server)."""
    opened = require_index(index, "web_search")

    def web_search(argument: str) -> ToolResult:
        return hits_result(index_hits(opened, argument, params.top_k))

    return web_search


def make_crawl_page(_params: AgentParams, _sandbox: SandboxParams, index: Path | None) -> Tool:
    """Read pages by address; several are joined by ` | `."""
    opened = require_index(index, "crawl_page")

    def crawl_page(argument: str) -> ToolResult:
        return pages_result(index_pages(opened, addresses(argument)))

    return crawl_page


def require_index(index: Path | None, tool: str) -> Index:
    """Open the index that a tool answers from.

    Raises:
        UserError: there is none.
    """
    if index is None:
        raise UserError(f"{tool} needs a search index; this agent's prepare stage made none")
    return open_index(index)


def index_hits(index: Index, query: str, num: int) -> list[Hit]:
    """Search the pages of an index."""
    return [
        Hit(
            title=passage.title,
            link=page_url(passage.title),
            snippet=passage.text[:SNIPPET_CHARS],
        )
        for passage in index.search(query, num)
    ]


def index_pages(index: Index, urls: Sequence[str]) -> list[Page]:
    """Read the pages of an index."""
    found = {url: index.page(url) for url in urls}
    return [
        Page(url=url, state="ok", text="\n".join(passage.text for passage in passages))
        if passages
        else Page(url=url, state="missing", text=MISSING)
        for url, passages in found.items()
    ]
