"""Requests and responses of the official tool servers (AFM/tool_servers), as both sides of this project speak them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from afm.tools.answers import Found, Hit
from afm.tools.base import Passage

STATUS_HEADER = "X-AFM-Status"
"""`ok` or `empty`, beside an official body, which cannot say it."""
METADATA_HEADER = "X-AFM-Metadata"
"""JSON object: what the observation's text does not tell."""

Query = Field(max_length=10_000)


class _Body(BaseModel):
    """Official clients and servers send more than they need: unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RetrieveRequest(_Body):
    """Body of POST /retrieve."""

    queries: tuple[str, ...] = Field(min_length=1, max_length=256)
    topk: int | None = Field(default=None, ge=1, le=100)
    """Passages per query; null: the server's own number."""
    return_scores: bool = False


class Document(_Body):
    """One document: the quoted title, a line break, the text."""

    contents: str


class ScoredDocument(_Body):
    """A document and its score."""

    document: Document
    score: float


class RetrieveResponse(_Body):
    """Answer of POST /retrieve, one list per query."""

    result: tuple[tuple[ScoredDocument | Document, ...], ...]


class SearchRequest(_Body):
    """Body of POST /search."""

    q: str = Query
    num: int = Field(default=10, ge=1, le=100)


class OrganicResult(_Body):
    """One result of Serper."""

    title: str = ""
    link: str = Field(min_length=1)
    snippet: str = ""
    date: str | None = None
    source: str | None = None


class SearchResponse(_Body):
    """Answer of POST /search. An answer without the list is broken, one with an empty list is empty."""

    organic: tuple[OrganicResult, ...]


class CrawlRequest(_Body):
    """Body of POST /crawl_page."""

    urls: tuple[str, ...] = Field(min_length=1, max_length=32)
    task: str = ""
    web_search_query: str = ""
    think_content: str = ""


class CrawlResponse(_Body):
    """Answer of POST /crawl_page."""

    success: bool
    obs: str
    error_message: str | None = None
    processing_time: float = 0.0


class InspectRequest(_Body):
    """Body of POST /visual_inspector, which has no official counterpart."""

    file_path: str = Query
    question: str = ""


class InspectResponse(_Body):
    """Answer of POST /visual_inspector."""

    status: Literal["ok", "empty"]
    text: str


def document_of(found: Found) -> dict[str, Any]:
    """Write a passage as the official retriever does."""
    contents = f'"{found.passage.title}"\n{found.passage.text}'
    return {"document": {"contents": contents}, "score": found.score}


def found_of(document: ScoredDocument | Document) -> Found:
    """Read a passage that a retriever sent."""
    inner = document.document if isinstance(document, ScoredDocument) else document
    title, _, text = inner.contents.partition("\n")
    score = document.score if isinstance(document, ScoredDocument) else 0.0
    return Found(passage=Passage(title=title.strip().strip('"'), text=text), score=score)


def organic_of(hit: Hit) -> dict[str, str]:
    """Write a result as Serper does; absent fields are left out."""
    fields = {"title": hit.title, "link": hit.link, "snippet": hit.snippet}
    more = {"date": hit.date, "source": hit.source}
    return fields | {name: value for name, value in more.items() if value}


def hit_of(result: OrganicResult) -> Hit:
    """Read a result that a search server sent."""
    return Hit(
        title=result.title,
        link=result.link,
        snippet=result.snippet,
        date=result.date,
        source=result.source,
    )
