"""A BM25 index over passages: deterministic, no downloads, memory-mapped."""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from afm.errors import UserError
from afm.jsonl import read_rows, write_rows
from afm.tools.base import Passage

_WORD = re.compile(r"[^\W_]+(?:['’.\-][^\W_]+)*")
_TITLE_WEIGHT = 2
"""How often the title counts: the page about a thing should beat pages that mention it."""
_PASSAGES = "passages.jsonl"
PAGE_HOST = "pages.example"
"""Host of every page of a corpus; of a domain that is reserved and never resolves."""


def words(text: str) -> list[str]:
    """Split text into lower-case words of letters and digits; inner apostrophes, hyphens, dots stay."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def page_url(title: str) -> str:
    """Return the address under which `crawl_page` knows the passages with this title."""
    return f"https://{PAGE_HOST}/" + "_".join(re.findall(r"\w+", title))


def build_index(passages: Iterable[Passage], out: Path) -> None:
    """Index passages into a folder; the same passages give the same bytes.

    Raises:
        UserError: there is no passage.
    """
    import bm25s

    rows = list(passages)
    if not rows:
        raise UserError("no passages to index: the corpus is empty")
    retriever = bm25s.BM25()
    texts = [words(f"{(row.title + ' ') * _TITLE_WEIGHT}{row.text}") for row in rows]
    vocabulary = {word: i for i, word in enumerate(sorted({w for text in texts for w in text}))}
    ids = [[vocabulary[word] for word in text] for text in texts]
    retriever.index((ids, vocabulary), show_progress=False)
    retriever.save(out, show_progress=False)
    write_rows(out / _PASSAGES, rows)


class Index:
    """An opened index."""

    def __init__(self, folder: Path) -> None:
        """Map an index made by `build_index`.

        Raises:
            UserError: the folder holds no index.
        """
        import bm25s

        if not (folder / _PASSAGES).is_file():
            raise UserError(f"no search index in {folder}; stage prepare makes it")
        self.passages = read_rows(folder / _PASSAGES, Passage)
        self._bm25: Any = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        self._pages: dict[str, list[Passage]] = {}
        for passage in self.passages:
            self._pages.setdefault(page_url(passage.title), []).append(passage)

    def search(self, query: str, top_k: int) -> list[Passage]:
        """Return the best passages that share a word with the query; ties in corpus order."""
        return [passage for passage, _ in self.scored(query, top_k)]

    def scored(self, query: str, top_k: int) -> list[tuple[Passage, float]]:
        """Return what `search` does, with the BM25 scores."""
        known = [word for word in words(query) if word in self._bm25.vocab_dict]
        if not known:
            return []
        import numpy as np

        scores = self._bm25.get_scores(known)
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [(self.passages[i], float(scores[i])) for i in best if scores[i] > 0]

    def page(self, url: str) -> list[Passage]:
        """Return the passages at an address; none if it is unknown."""
        return self._pages.get(url, [])


@lru_cache(maxsize=8)
def open_index(folder: Path) -> Index:
    """Open an index once per process; see `Index`."""
    return Index(folder)
