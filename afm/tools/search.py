"""`wiki_search`, `web_search` and `crawl_page` over one index, rendered as the official ones do."""

from pathlib import Path

from afm.errors import UserError
from afm.params.agents import AgentParams
from afm.params.tools import SandboxParams
from afm.tools.base import Passage, Tool, ToolResult
from afm.tools.index import Index, open_index, page_url

NOTHING = "No results found."
_SNIPPET_CHARS = 160
_URL_SEPARATOR = " | "


def make_wiki_search(params: AgentParams, _sandbox: SandboxParams, index: Path | None) -> Tool:
    """Search that shows whole passages (official wiki server)."""
    opened = _require(index, "wiki_search")

    def wiki_search(argument: str) -> ToolResult:
        found = opened.search(argument, params.top_k)
        if not found:
            return ToolResult(text=NOTHING, status="empty")
        docs = [_doc(number, passage) for number, passage in enumerate(found, start=1)]
        return ToolResult(text="\n\n".join(docs), status="ok")

    return wiki_search


def make_web_search(params: AgentParams, _sandbox: SandboxParams, index: Path | None) -> Tool:
    """Search that shows titles, links and snippets (official search server)."""
    opened = _require(index, "web_search")

    def web_search(argument: str) -> ToolResult:
        found = opened.search(argument, params.top_k)
        if not found:
            return ToolResult(text=NOTHING, status="empty")
        hits = [_hit(number, passage) for number, passage in enumerate(found, start=1)]
        text = f"Found {len(found)} results:\n\n## Web Results\n" + "\n\n".join(hits)
        return ToolResult(text=text, status="ok")

    return web_search


def make_crawl_page(_params: AgentParams, _sandbox: SandboxParams, index: Path | None) -> Tool:
    """Read pages by address; several are joined by ` | `."""
    opened = _require(index, "crawl_page")

    def crawl_page(argument: str) -> ToolResult:
        urls = [url.strip() for url in argument.split(_URL_SEPARATOR) if url.strip()]
        pages = {url: opened.page(url) for url in urls}
        text = "\n\n".join(
            f"Page {number} [{url}]\n" + ("\n".join(p.text for p in passages) or "No such page.")
            for number, (url, passages) in enumerate(pages.items(), start=1)
        )
        return ToolResult(text=text, status="ok" if any(pages.values()) else "empty")

    return crawl_page


def _require(index: Path | None, tool: str) -> Index:
    if index is None:
        raise UserError(f"{tool} needs a search index; this agent's prepare stage made none")
    return open_index(index)


def _doc(number: int, passage: Passage) -> str:
    return f'Doc {number} (Title: "{passage.title}")\n{passage.text}'


def _hit(number: int, passage: Passage) -> str:
    url = page_url(passage.title)
    snippet = passage.text[:_SNIPPET_CHARS]
    return f"{number}. [{passage.title}]({url})\n{url}\n{snippet}"
