"""The text of one document. Runs in worker processes: parsers of hostile input may hang or grow."""

import re
import resource
from typing import Literal

from afm.tools.fetch import Document, NotReadable

DocumentKind = Literal["html", "pdf", "text"]
NO_TEXT = "This page holds no text."
_MEMORY_BYTES = 2 * 1024**3
_MAX_PDF_PAGES = 200
_HYPHEN = re.compile(r"(?<=\w)-\n(?=[a-z])")
_TEXTS = ("application/json", "application/xml")


class BrokenDocument(ValueError):
    """A document that its own format does not allow."""


def arm_worker() -> None:
    """Limit the memory of a worker process, and load the parsers before its first deadline."""
    import pypdf  # noqa: F401
    import trafilatura  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def document_kind(document: Document) -> DocumentKind:
    """Return how a document is read.

    Raises:
        NotReadable: it is neither text nor PDF.
    """
    mime = document.mime
    if mime == "application/pdf" or document.body.startswith(b"%PDF-"):
        return "pdf"
    if mime in ("text/html", "application/xhtml+xml", ""):
        return "html"
    if mime.startswith("text/") or mime in _TEXTS:
        return "text"
    raise NotReadable(f"This page could not be read: {mime} is neither text nor PDF.")


def extract_text(kind: DocumentKind, body: bytes, charset: str | None) -> str:
    """Return the main text of a document, empty when it has none.

    Raises:
        BrokenDocument: it cannot be parsed.
    """
    if kind == "pdf":
        return _pdf(body)
    text = decoded(body, charset)
    return text.strip() if kind == "text" else _html(text)


def decoded(body: bytes, charset: str | None) -> str:
    """Decode bytes by the charset that the server named, else by the document's own or by its looks."""
    from trafilatura.utils import decode_file

    if charset is not None:
        try:
            return body.decode(charset)
        except (LookupError, UnicodeDecodeError):
            pass  # servers name wrong charsets; the document knows better
    declared = re.search(rb"""<meta[^>]+charset=["']?([\w-]+)""", body[:2048], re.IGNORECASE)
    if charset is None and declared:
        return decoded(body, declared[1].decode())
    return str(decode_file(body))


def _html(text: str) -> str:
    import trafilatura
    from trafilatura.settings import use_config

    if "<html" not in text[:4096].lower():
        text = f"<html><body>{text}</body></html>"  # a fragment alone is not seen as HTML
    config = use_config()
    # A page of one sentence is a page: the library's own thresholds would take its menu for more text.
    config.set("DEFAULT", "MIN_EXTRACTED_SIZE", "20")
    config.set("DEFAULT", "MIN_OUTPUT_SIZE", "1")
    found = trafilatura.extract(
        text, include_comments=False, include_tables=True, favor_recall=True, config=config
    )
    return (found or trafilatura.html2txt(text) or "").strip()


def _pdf(body: bytes) -> str:
    import io

    import pypdf
    from pypdf.errors import PyPdfError

    try:
        reader = pypdf.PdfReader(io.BytesIO(body))
        pages = [page.extract_text() for page in reader.pages[:_MAX_PDF_PAGES]]
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BrokenDocument(f"broken PDF: {type(error).__name__}: {error}") from error
    return "\n\n".join(unwrapped(page) for page in pages).strip()


def unwrapped(page: str) -> str:
    """Join the lines of a page into paragraphs; a blank line ends one."""
    paragraphs = re.split(r"\n\s*\n", _HYPHEN.sub("-", page))
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
