"""`tools`: who answers the agents' tools, and how hard they may be pressed."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from afm.params._model import Count, Positive, PositiveFloat, Section, Share

WikiBackend = Literal["index", "retriever"]
SearchBackend = Literal["index", "site", "search"]
CrawlBackend = Literal["index", "web", "crawler"]


class EndpointParams(Section):
    """One HTTP backend."""

    url: str
    """Whole address, path included."""
    api_key_variable: str | None
    """Name of the environment variable with the key; null: none is sent."""
    requests_per_s: PositiveFloat
    """Token bucket [requests/s]; it holds one second's worth."""


class EndpointsParams(Section):
    """The HTTP backends by name."""

    retriever: EndpointParams
    """Speaks the official `/retrieve`."""
    search: EndpointParams
    """Speaks the official `/search`: Serper, or a server like it."""
    crawler: EndpointParams
    """Speaks the official `/crawl_page`."""


class HttpParams(Section):
    """How every HTTP backend is asked."""

    timeout_s: PositiveFloat
    """Of one try, its whole body included [s]."""
    max_tries: Positive
    concurrency: Positive
    """Requests in flight per backend."""
    max_answer_bytes: Positive
    """Longer answers are an error [bytes]."""


class WebParams(Section):
    """How `crawl_page` reads pages itself."""

    user_agent: str
    """Also the name that robots.txt is asked for."""
    obey_robots: bool
    max_pages: Positive
    """Pages read per call [pages]; further addresses are named and not read."""
    max_page_bytes: Positive
    """Larger documents are not read [bytes]."""
    max_page_chars: Positive
    """Longer text of a page loses its middle [characters]."""
    known_host: str
    """Host that exists: while it resolves, another one that does not is no such host, and not an outage."""
    max_redirects: Count
    timeout_s: PositiveFloat
    """Of one try of one page, its whole body included [s]."""
    max_tries: Positive
    requests_per_s: PositiveFloat
    """Over all hosts [requests/s]."""
    concurrency: Positive
    """Pages in flight."""
    extract_s: PositiveFloat
    """Taking the text out of one document, in a process that is killed at the limit [s]."""
    private_hosts: Annotated[tuple[str, ...], Field(strict=False)]
    """Hosts that may lie at private addresses; all others must be public."""


class SiteParams(Section):
    """The embedded web site: the corpus as HTML and PDF pages on loopback.

    Without its host (`afm.tools.index.PAGE_HOST`) in `web.private_hosts` its pages are not read.
    """

    pdf_share: Share
    """Share of the pages that are PDF; only ASCII text can be."""


class ModelParams(Section):
    """An OpenAI-compatible endpoint that a tool uses."""

    base_url: str
    model: str
    api_key_variable: str | None
    max_tokens: Positive
    """Longest answer [tokens]."""
    temperature: Annotated[float, Field(ge=0)]
    timeout_s: PositiveFloat
    concurrency: Positive


class VisionParams(Section):
    """`visual_inspector`: a multimodal model, and where images may come from."""

    endpoint: ModelParams
    image_folder: str | None
    """Local images lie below this folder; null: addresses alone."""
    max_image_bytes: Positive


class CassetteParams(Section):
    """A folder with the answers of all tool calls of a run."""

    mode: Literal["record", "replay"]
    folder: str
    """One file of JSON Lines per stage cell; `replay` reads it and asks no backend."""


class ToolsParams(Section):
    """Section `tools`. Backends are asked in order; a later one only when those before it failed."""

    wiki_search: Annotated[tuple[WikiBackend, ...], Field(strict=False, min_length=1)]
    web_search: Annotated[tuple[SearchBackend, ...], Field(strict=False, min_length=1)]
    crawl_page: Annotated[tuple[CrawlBackend, ...], Field(strict=False, min_length=1)]
    endpoints: EndpointsParams
    http: HttpParams
    web: WebParams
    site: SiteParams
    summary: ModelParams | None
    """Summarises pages towards the question; null: pages as they are."""
    vision: VisionParams | None
    cassette: CassetteParams | None

    @model_validator(mode="after")
    def _no_backend_twice(self) -> Self:
        for tool in ("wiki_search", "web_search", "crawl_page"):
            names = getattr(self, tool)
            if len(set(names)) != len(names):
                raise ValueError(f"{tool} names a backend twice: {list(names)}")
        return self
