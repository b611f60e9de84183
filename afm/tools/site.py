"""The embedded web site: the corpus as HTML and PDF pages with a search endpoint, on loopback.

With it web search and page reading work offline through the same code as on the live web: HTTP, robots.txt, charsets,
redirects, extraction. A page's text comes out as its passages went in.
"""

import hashlib
import html
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from afm.tools.base import Passage
from afm.tools.bodies import SearchRequest, organic_of
from afm.tools.index import PAGE_HOST, Index
from afm.tools.search import index_hits

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""Written into every PDF, so that equal pages are equal bytes."""
ROBOTS = "User-agent: *\nAllow: /\n"
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body><header><h1>{title}</h1><nav><a href="/">Home</a></nav></header>
<main><article>
{paragraphs}
</article></main><footer>A page of the corpus.</footer></body>
</html>
"""


def is_pdf(path: str, passages: list[Passage], share: float) -> bool:
    """Tell whether a page is a PDF: by the hash of its path.

    Only ASCII, which the standard fonts have, and only one passage, since PDF keeps no paragraphs.
    """
    draw = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big") / 2**32
    is_plain = len(passages) == 1 and (passages[0].title + passages[0].text).isascii()
    return draw < share and is_plain


def html_page(passages: list[Passage]) -> str:
    """Write a page; one paragraph per passage."""
    paragraphs = "\n".join(f"<p>{html.escape(passage.text)}</p>" for passage in passages)
    return _PAGE.format(title=html.escape(passages[0].title), paragraphs=paragraphs)


def pdf_page(passage: Passage) -> bytes:
    """Write a page as PDF."""
    from fpdf import FPDF

    pdf = FPDF()
    pdf.set_creation_date(_EPOCH)
    pdf.set_title(passage.title)
    pdf.set_font("helvetica", size=11)
    pdf.add_page()
    pdf.multi_cell(0, 6, passage.text, align="L")
    return bytes(pdf.output())


class Site:
    """Serves one index; belongs to the event loop that starts it."""

    def __init__(self, index: Index, pdf_share: float) -> None:
        """Serve nothing yet."""
        self._index = index
        self._pdf_share = pdf_share
        self._runner: Any = None
        self.origin = ""
        """`http://127.0.0.1:port` once it is started."""

    async def start(self) -> str:
        """Listen on a free port of loopback; returns the origin."""
        from aiohttp import web

        app = web.Application()
        app.add_routes(
            [
                web.get("/robots.txt", self._robots),
                web.post("/search", self._search),
                web.get("/{path:.+}", self._page),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        tcp = web.TCPSite(self._runner, "127.0.0.1", 0)
        await tcp.start()
        host, port = self._runner.addresses[0]
        self.origin = f"http://{host}:{port}"
        return self.origin

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _robots(self, _request: Any) -> Any:
        from aiohttp import web

        return web.Response(text=ROBOTS)

    async def _search(self, request: Any) -> Any:
        from aiohttp import web

        asked = SearchRequest.model_validate_json(await request.read())
        hits = index_hits(self._index, asked.q, asked.num)
        return web.json_response({"organic": [organic_of(hit) for hit in hits]})

    async def _page(self, request: Any) -> Any:
        from aiohttp import web

        body, mime = self._content(request.match_info["path"])
        if not body:
            return web.Response(status=404, text="No such page.")
        return web.Response(body=body, content_type=mime, charset=_charset(mime))

    @lru_cache(maxsize=1024)  # noqa: B019 - one site per process and index
    def _content(self, path: str) -> tuple[bytes, str]:
        """Return a page's bytes and type; no bytes where there is no page."""
        passages = self._index.page(f"https://{PAGE_HOST}/{path}")
        if not passages:
            return b"", ""
        if is_pdf(path, passages, self._pdf_share):
            return pdf_page(passages[0]), "application/pdf"
        return html_page(passages).encode(), "text/html"


def _charset(mime: str) -> str | None:
    return "utf-8" if mime.startswith("text/") else None
