"""`crawl_page` over the web: fetch, take the text out, and summarise it where a model is configured."""

import asyncio
import atexit
import multiprocessing
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from afm.errors import ToolError
from afm.params.backends import WebParams
from afm.tools.answers import Page, pages_result
from afm.tools.base import ToolResult, shorten
from afm.tools.extract import (
    NO_TEXT,
    BrokenDocument,
    arm_worker,
    document_kind,
    extract_text,
)
from afm.tools.fetch import Document, NotReadable, PageFetcher
from afm.tools.model import ToolModel
from afm.tools.summary import summarise

_WORKERS = 2


class Extractor:
    """Worker processes that take the text out of documents, each killed at its deadline."""

    def __init__(self, deadline_s: float) -> None:
        """Start nothing yet; `deadline_s` is for one document [s]."""
        self._deadline_s = deadline_s
        self._pool: Any = None

    async def text(self, document: Document) -> str:
        """Return the text of a document.

        Raises:
            NotReadable: it is neither text nor PDF, or too hard to read.
            ToolError: it is broken, or the worker died.
        """
        from pebble import ProcessExpired, ProcessPool

        kind = document_kind(document)
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=_WORKERS,
                initializer=arm_worker,
                context=multiprocessing.get_context("spawn"),
            )
        work = self._pool.schedule(
            extract_text,
            args=(kind, document.body, document.charset),
            timeout=self._deadline_s,
        )
        try:
            return str(await asyncio.wrap_future(work))
        except TimeoutError as error:
            why = f"This page could not be read within {self._deadline_s:g} s."
            raise NotReadable(why) from error
        except BrokenDocument as error:
            raise ToolError(f"{document.url}: {error}", kind="broken_answer") from error
        except (ProcessExpired, MemoryError, RecursionError) as error:
            raise ToolError(f"{document.url}: reading it failed: {error!r}") from error

    def close(self) -> None:
        """Kill the workers."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None


@lru_cache(maxsize=4)
def shared_extractor(deadline_s: float, _pid: int) -> Extractor:
    """Return this process's workers: starting one takes a second, and all backends can use the same."""
    extractor = Extractor(deadline_s)
    atexit.register(extractor.close)
    return extractor


class WebCrawler:
    """Reads pages of the web itself."""

    def __init__(
        self,
        params: WebParams,
        fetcher: PageFetcher,
        extractor: Extractor,
        summariser: ToolModel | None,
    ) -> None:
        """Put the parts together."""
        self._params = params
        self._fetcher = fetcher
        self._extractor = extractor
        self._summariser = summariser

    async def crawl(self, urls: Sequence[str], goal: str) -> ToolResult:
        """See `Crawler`; pages are read at the same time."""
        wanted = urls[: self._params.max_pages]
        pages = await asyncio.gather(*(self._page(url, goal) for url in wanted))
        more = f"Not read: a call reads at most {self._params.max_pages} pages."
        left = [Page(url=url, state="missing", text=more) for url in urls[len(wanted) :]]
        return pages_result([*pages, *left])

    async def _page(self, url: str, goal: str) -> Page:
        try:
            text = await self._text(url, goal)
        except NotReadable as error:
            return Page(url=url, state="missing", text=str(error))
        except ToolError as error:
            return Page(url=url, state="failed", text=str(error), error_kind=error.kind)
        return Page(url=url, state="ok", text=text)

    async def _text(self, url: str, goal: str) -> str:
        document = await self._fetcher.fetch(url)
        text = await self._extractor.text(document)
        if not text:
            raise NotReadable(NO_TEXT)
        short = shorten(text, self._params.max_page_chars)
        return await summarise(self._summariser, short, goal) if self._summariser else short
