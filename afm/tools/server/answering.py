"""From official requests to answers that can be kept: what is asked of backends, and how it is typed."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from afm.tools.answers import addresses
from afm.tools.assembly import NO_ADDRESS
from afm.tools.backends import Backends
from afm.tools.base import ToolResult
from afm.tools.bodies import (
    CrawlRequest,
    InspectRequest,
    RetrieveRequest,
    SearchRequest,
    document_of,
    organic_of,
)
from afm.tools.server.cache import Answer, AnswerCache, request_key
from afm.tools.server.desk import Capacity, Desk
from afm.tools.server.metrics import Metrics
from afm.tools.vision import Inspection

_SOURCES = ("backend", "coalesced", "cache")
"""Of an answer made of several: the dearest counts."""


class Answering:
    """Answers requests to all tools of one server."""

    def __init__(
        self,
        backends: Backends,
        tools: Sequence[str],
        *,
        settings: str,
        has_summaries: bool,
        top_k: int,
        capacity: Capacity,
        cache: AnswerCache,
        metrics: Metrics,
    ) -> None:
        """Open a desk per tool.

        Args:
            backends: Who is asked.
            tools: Tools that are served.
            settings: Hash of the params that shape answers; part of every key.
            has_summaries: Whether the goal of a crawl shapes its answer.
            top_k: Passages per query where a request does not say.
            capacity: Of each tool.
            cache: Where answers are kept.
            metrics: What counts them.
        """
        self.tools = tuple(tools)
        self._backends = backends
        self._settings = settings
        self._has_summaries = has_summaries
        self._top_k = top_k
        self._desks = {tool: Desk(tool, capacity, cache, metrics) for tool in tools}

    async def retrieve(self, asked: RetrieveRequest) -> tuple[Answer, str]:
        """Answer POST /retrieve; each query is asked, kept and coalesced by itself."""
        top_k = asked.topk or self._top_k
        parts = await asyncio.gather(*(self._passages(query, top_k) for query in asked.queries))
        lists = [_documents(answer, asked.return_scores) for answer, _ in parts]
        found = Answer(
            status="ok" if any(lists) else "empty",
            body={"result": lists},
            metadata={key: text for answer, _ in parts for key, text in answer.metadata.items()},
        )
        return found, min((source for _, source in parts), key=_SOURCES.index)

    async def search(self, asked: SearchRequest) -> tuple[Answer, str]:
        """Answer POST /search."""

        async def ask() -> Answer:
            found = await self._backends.search(asked.q.strip(), asked.num)
            organic = [organic_of(hit) for hit in found.value]
            return Answer(
                status="ok" if organic else "empty",
                body={"organic": organic},
                metadata=found.metadata,
            )

        request = {"q": asked.q.strip(), "num": asked.num}
        return await self._desks["web_search"].answer(self._key("web_search", request), ask)

    async def crawl(self, asked: CrawlRequest) -> tuple[Answer, str]:
        """Answer POST /crawl_page."""
        urls = addresses(" | ".join(asked.urls))
        hints = (asked.task, asked.web_search_query, asked.think_content)
        goal = "\n".join(hint for hint in hints if hint.strip())

        async def ask() -> Answer:
            if not urls:
                return _crawled(ToolResult(text=NO_ADDRESS, status="empty"), {})
            read = await self._backends.crawl(urls, goal)
            return _crawled(read.value, read.metadata)

        request = {"urls": urls, "goal": goal if self._has_summaries else ""}
        return await self._desks["crawl_page"].answer(self._key("crawl_page", request), ask)

    async def inspect(self, asked: InspectRequest) -> tuple[Answer, str]:
        """Answer POST /visual_inspector; not kept, since a model's answers differ."""
        inspector = self._backends.inspector
        assert inspector is not None

        async def ask() -> Answer:
            wanted = Inspection(file_path=asked.file_path, question=asked.question)
            result = await inspector.answer(wanted)
            body = {"status": result.status, "text": result.text}
            return Answer(status=result.status, body=body, metadata=dict(result.metadata))

        key = self._key("visual_inspector", asked.model_dump(mode="json"))
        return await self._desks["visual_inspector"].answer(key, ask, is_cached=False)

    async def _passages(self, query: str, top_k: int) -> tuple[Answer, str]:
        async def ask() -> Answer:
            found = await self._backends.retrieve(query.strip(), top_k)
            documents = [document_of(one) for one in found.value]
            return Answer(
                status="ok" if documents else "empty",
                body={"documents": documents},
                metadata=found.metadata,
            )

        request = {"query": query.strip(), "top_k": top_k}
        return await self._desks["wiki_search"].answer(self._key("wiki_search", request), ask)

    def _key(self, tool: str, request: Mapping[str, Any]) -> str:
        return request_key(tool, request, self._settings)


def _crawled(result: ToolResult, metadata: Mapping[str, str]) -> Answer:
    body = {"success": True, "obs": result.text, "error_message": None}
    return Answer(status=result.status, body=body, metadata={**metadata, **result.metadata})


def _documents(answer: Answer, with_scores: bool) -> list[Any]:
    documents: list[dict[str, Any]] = answer.body["documents"]
    return documents if with_scores else [one["document"] for one in documents]
