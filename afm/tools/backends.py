"""The backends that params configure, opened once per process: what the tools of agents and `afm serve-tools` ask."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.params.backends import EndpointParams, SearchBackend, ToolsParams
from afm.tools.answers import Crawler, Found, Hit, Retriever, Searcher, pages_result
from afm.tools.base import ToolResult
from afm.tools.crawl import WebCrawler, shared_extractor
from afm.tools.fallback import Answered, first_answer
from afm.tools.fetch import PageFetcher
from afm.tools.http import HttpBackend
from afm.tools.index import PAGE_HOST, Index
from afm.tools.model import ToolModel
from afm.tools.remote import HttpCrawler, HttpRetriever, HttpSearcher
from afm.tools.search import index_hits, index_pages, require_index
from afm.tools.site import Site
from afm.tools.vision import VisualInspector

NEED_INDEX = ("index", "site")


class IndexBackend:
    """Answers from passages of this machine; in threads, since scoring a large index takes its time."""

    def __init__(self, index: Index) -> None:
        """Take an opened index."""
        self._index = index

    async def retrieve(self, query: str, top_k: int) -> list[Found]:
        """See `Retriever`."""
        scored = await asyncio.to_thread(self._index.scored, query, top_k)
        return [Found(passage=passage, score=score) for passage, score in scored]

    async def search(self, query: str, num: int) -> list[Hit]:
        """See `Searcher`."""
        return await asyncio.to_thread(index_hits, self._index, query, num)

    async def crawl(self, urls: Sequence[str], goal: str) -> ToolResult:
        """See `Crawler`."""
        return pages_result(index_pages(self._index, urls))


class Backends:
    """Asks the configured backends of each tool in order; belongs to the event loop that uses it first."""

    def __init__(self, params: ToolsParams, index: Path | None, tools: Sequence[str]) -> None:
        """Connect lazily.

        Args:
            params: Section `tools`.
            index: Folder made by `build_index`; needed by the backends `index` and `site` only.
            tools: Tools that will be used; the others are not opened.

        Raises:
            UserError: a backend needs an index, a key or a model that is not there.
        """
        self._params = params
        self._index = index
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._site: Site | None = None
        self._starting: asyncio.Task[str] | None = None
        self._origins: dict[str, str] = {}
        self._clients: dict[str, HttpBackend] = {}
        self._fetcher = self._closed_later(PageFetcher(params.web, self._origins))
        self._retrievers = self._opened("wiki_search", tools, self._retriever)
        self._searchers = self._opened("web_search", tools, self._searcher)
        self._crawlers = self._opened("crawl_page", tools, self._crawler)
        self.inspector = self._inspector() if "visual_inspector" in tools else None

    async def retrieve(self, query: str, top_k: int) -> Answered[list[Found]]:
        """Ask for passages; raises `ToolError` when every backend failed."""
        return await first_answer(
            [(name, partial(one.retrieve, query, top_k)) for name, one in self._retrievers.items()]
        )

    async def search(self, query: str, num: int) -> Answered[list[Hit]]:
        """Ask for search results; raises `ToolError` when every backend failed."""
        await self._start()
        return await first_answer(
            [(name, partial(one.search, query, num)) for name, one in self._searchers.items()]
        )

    async def crawl(self, urls: Sequence[str], goal: str) -> Answered[ToolResult]:
        """Ask for pages; raises `ToolError` when every backend failed."""
        await self._start()
        return await first_answer(
            [(name, partial(one.crawl, urls, goal)) for name, one in self._crawlers.items()]
        )

    async def close(self) -> None:
        """Close all that was opened."""
        for close in reversed(self._closers):
            await close()

    async def _start(self) -> None:
        """Start the embedded site, once, where a backend needs it."""
        if self._site is None:
            return
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._site.start())
        self._origins[PAGE_HOST] = await asyncio.shield(self._starting)

    def _opened(
        self, tool: str, tools: Sequence[str], make: Callable[[Any], Any]
    ) -> Mapping[str, Any]:
        names = getattr(self._params, tool) if tool in tools else ()
        return {name: make(name) for name in names}

    def _retriever(self, name: str) -> Retriever:
        if name == "index":
            return IndexBackend(require_index(self._index, "wiki_search"))
        return HttpRetriever(self._client("retriever", self._params.endpoints.retriever))

    def _searcher(self, name: SearchBackend) -> Searcher:
        if name == "index":
            return IndexBackend(require_index(self._index, "web_search"))
        if name == "site":
            searcher = SiteSearcher(self._open_site(), self._params)
            self._closers.append(searcher.close)
            return searcher
        return HttpSearcher(self._client("search", self._params.endpoints.search))

    def _crawler(self, name: str) -> Crawler:
        if name == "index":
            return IndexBackend(require_index(self._index, "crawl_page"))
        if name == "crawler":
            return HttpCrawler(self._client("crawler", self._params.endpoints.crawler))
        if self._index is not None and PAGE_HOST in self._params.web.private_hosts:
            self._open_site()
        model = self._params.summary
        summariser = self._closed_later(ToolModel(model)) if model is not None else None
        extractor = shared_extractor(self._params.web.extract_s, os.getpid())
        return WebCrawler(self._params.web, self._fetcher, extractor, summariser)

    def _inspector(self) -> VisualInspector:
        if self._params.vision is None:
            raise UserError(
                "visual_inspector needs tools.vision: name an endpoint of a multimodal model there"
            )
        inspector = VisualInspector(self._params.vision, self._fetcher)
        self._closers.append(inspector.close)
        return inspector

    def _open_site(self) -> Site:
        if self._site is None:
            index = require_index(self._index, "the embedded web site")
            self._site = self._closed_later(Site(index, self._params.site.pdf_share))
        return self._site

    def _client(self, name: str, endpoint: EndpointParams) -> HttpBackend:
        if name not in self._clients:
            client = HttpBackend(name, endpoint, self._params.http)
            self._clients[name] = self._closed_later(client)
        return self._clients[name]

    def _closed_later(self, opened: Any) -> Any:
        self._closers.append(opened.close)
        return opened


class SiteSearcher:
    """Searches the embedded site over HTTP, wherever it came to listen."""

    def __init__(self, site: Site, params: ToolsParams) -> None:
        """Take a site that is started before the first search."""
        self._site = site
        self._params = params
        self._backend: HttpBackend | None = None

    async def search(self, query: str, num: int) -> list[Hit]:
        """See `Searcher`."""
        if self._backend is None:
            endpoint = EndpointParams(
                url=f"{self._site.origin}/search",
                api_key_variable=None,
                requests_per_s=self._params.endpoints.search.requests_per_s,
            )
            self._backend = HttpBackend("site", endpoint, self._params.http)
        return await HttpSearcher(self._backend).search(query, num)

    async def close(self) -> None:
        """Close all connections."""
        if self._backend is not None:
            await self._backend.close()
