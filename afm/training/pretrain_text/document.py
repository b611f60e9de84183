"""A generated document: text in pieces, each marked as trained or only read."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of a document."""

    text: str
    trained: bool
    """Whether the loss covers it: only what follows from earlier text is trained."""
    probe: str | None = None
    """Name of the held-out figure this stretch counts towards, if any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One training text."""

    kind: str
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(kw_only=True, slots=True)
class Builder:
    """Collects pieces. A piece that starts a word carries the space before it."""

    kind: str
    pieces: list[Piece] = field(default_factory=list)

    def read(self, text: str) -> None:
        """Add text that is only read: it cannot be foreseen, so it is not trained."""
        if text:
            self.pieces.append(Piece(text=text, trained=False))

    def write(self, text: str, probe: str | None = None) -> None:
        """Add text that follows from what came before, and is trained."""
        if text:
            self.pieces.append(Piece(text=text, trained=True, probe=probe))

    def fill(self, template: str, value: str, probe: str | None = None, **context: str) -> None:
        """Write a template whose ``{value}`` becomes a piece of its own, with the space before it.

        The other fields of the template are taken from ``context``.
        """
        before, after = template.split("{value}")
        self.write(before.removesuffix(" ").format(**context))
        self.write(" " * before.endswith(" ") + value, probe)
        self.write(after.format(**context))

    def done(self) -> Document:
        """The finished document."""
        return Document(kind=self.kind, pieces=tuple(self.pieces))
