"""Token batches of generated documents: a pure function of the seed and the step."""

import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import torch
from tokenizers import Tokenizer

from afm.training.pretrain_text.document import Document
from afm.training.pretrain_text.stream import document


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A document in tokens."""

    kind: str
    ids: tuple[int, ...]
    """``[T]`` token ids."""
    trained: tuple[bool, ...]
    """``[T]`` whether the loss covers the token."""
    probes: tuple[tuple[str, int, int], ...]
    """Probed stretches: name, first token, end token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Documents of similar length, padded on the right."""

    ids: torch.Tensor
    """``[B, T]`` int64, 0 where padded."""
    trained: torch.Tensor
    """``[B, T]`` bool."""
    num_tokens: int
    """Tokens that are not padding."""


def encode(tokenizer: Tokenizer, doc: Document) -> Encoded:
    """Tokenise a document once and carry the marks of its pieces over by character offsets."""
    encoding = tokenizer.encode(doc.text, add_special_tokens=False)
    ends = list(accumulate(len(piece.text) for piece in doc.pieces))
    owners = [bisect_right(ends, start) for start, _ in encoding.offsets]
    probes: list[tuple[str, int, int]] = []
    for number, piece in enumerate(doc.pieces):
        if piece.probe is not None:
            first = owners.index(number)
            probes.append((piece.probe, first, first + owners.count(number)))
    return Encoded(
        kind=doc.kind,
        ids=tuple(encoding.ids),
        trained=tuple(doc.pieces[owner].trained for owner in owners),
        probes=tuple(probes),
    )


def collate(docs: list[Encoded]) -> Batch:
    """Pad documents to one batch. Causal attention never looks at padding on the right."""
    longest = max(len(doc.ids) for doc in docs)
    ids = torch.zeros(len(docs), longest, dtype=torch.long)
    trained = torch.zeros(len(docs), longest, dtype=torch.bool)
    for row, doc in enumerate(docs):
        ids[row, : len(doc.ids)] = torch.tensor(doc.ids)
        trained[row, : len(doc.ids)] = torch.tensor(doc.trained)
    return Batch(ids=ids, trained=trained, num_tokens=sum(len(doc.ids) for doc in docs))


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchStream:
    """All batches of a training run.

    Documents are drawn in chunks; a chunk is sorted by length and cut into ``chunk_batches``
    batches of about equal token counts, in random order. So the batch of a step depends on the
    seed, the step and the number of steps, and a resumed run sees what an unbroken one sees.
    """

    tokenizer: Tokenizer
    seed: int
    steps: int
    batch_tokens: int
    """Tokens in a batch, about."""
    max_tokens: int
    """Longer documents are left out [tokens]."""
    chunk_batches: int = 16

    def chunk(self, number: int) -> list[Batch]:
        """The batches of steps ``number * chunk_batches`` and following."""
        progress = min(1.0, number * self.chunk_batches / self.steps)
        wanted = self.batch_tokens * self.chunk_batches
        docs: list[Encoded] = []
        total = count = 0
        while total < wanted:
            doc = document(f"{self.seed}:{number}:{count}", progress=progress)
            encoded = encode(self.tokenizer, doc)
            count += 1
            if len(encoded.ids) <= self.max_tokens:
                docs.append(encoded)
                total += len(encoded.ids)
        docs.sort(key=lambda encoded: len(encoded.ids))
        cuts: list[list[Encoded]] = [[] for _ in range(self.chunk_batches)]
        done = 0
        for encoded in docs:
            cuts[done * self.chunk_batches // total].append(encoded)
            done += len(encoded.ids)
        random.Random(f"order:{self.seed}:{number}").shuffle(cuts)
        return [collate(cut) for cut in cuts]
