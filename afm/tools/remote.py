"""Backends that other servers are: any that speaks the official `/retrieve`, `/search` or `/crawl_page`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from afm.errors import ToolError
from afm.tools.answers import Found, Hit
from afm.tools.base import ToolResult
from afm.tools.bodies import (
    METADATA_HEADER,
    STATUS_HEADER,
    CrawlResponse,
    RetrieveResponse,
    SearchResponse,
    found_of,
    hit_of,
)
from afm.tools.http import HttpBackend

BodyT = TypeVar("BodyT", bound=BaseModel)


class HttpRetriever:
    """POST /retrieve."""

    def __init__(self, backend: HttpBackend) -> None:
        """Take a client of the server."""
        self._backend = backend

    async def retrieve(self, query: str, top_k: int) -> list[Found]:
        """See `Retriever`."""
        body = {"queries": [query], "topk": top_k, "return_scores": True}
        answer, _ = await self._backend.post(body)
        lists = _read(answer, RetrieveResponse, self._backend.name).result
        if len(lists) != 1:
            raise ToolError(
                f"{self._backend.name}: {len(lists)} lists of passages for one query",
                kind="broken_answer",
            )
        return [found_of(document) for document in lists[0][:top_k]]


class HttpSearcher:
    """POST /search."""

    def __init__(self, backend: HttpBackend) -> None:
        """Take a client of the server."""
        self._backend = backend

    async def search(self, query: str, num: int) -> list[Hit]:
        """See `Searcher`."""
        answer, _ = await self._backend.post({"q": query, "num": num})
        organic = _read(answer, SearchResponse, self._backend.name).organic
        return [hit_of(result) for result in organic[:num]]


class HttpCrawler:
    """POST /crawl_page."""

    def __init__(self, backend: HttpBackend) -> None:
        """Take a client of the server."""
        self._backend = backend

    async def crawl(self, urls: Sequence[str], goal: str) -> ToolResult:
        """See `Crawler`."""
        body = {"urls": list(urls), "task": goal, "web_search_query": "", "think_content": ""}
        answer, headers = await self._backend.post(body)
        read = _read(answer, CrawlResponse, self._backend.name)
        name = self._backend.name
        if not read.success:
            raise ToolError(f"{name}: {read.error_message or 'no success'}", kind="failed")
        if not read.obs.strip():
            raise ToolError(f"{name}: success without an observation", kind="broken_answer")
        is_empty = headers.get(STATUS_HEADER) == "empty"
        return ToolResult(
            text=read.obs,
            status="empty" if is_empty else "ok",
            metadata=metadata_of(headers),
        )


def metadata_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Read the metadata that our own server adds; none from others.

    Raises:
        ToolError: the header is not what our server writes.
    """
    text = headers.get(METADATA_HEADER, "{}")
    try:
        found = json.loads(text)
        return {str(name): str(value) for name, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise ToolError(f"{METADATA_HEADER}: {text[:80]!r}", kind="broken_answer") from error


def _read(answer: Any, body: type[BodyT], name: str) -> BodyT:
    try:
        return body.model_validate(answer)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the answer"
        raise ToolError(
            f"{name}: broken answer: {where}: {fault['msg']}; got {repr(fault['input'])[:80]}",
            kind="broken_answer",
        ) from error
