"""What is asked, before it is put into words: chains of look-ups, alone or two of them combined."""

from dataclasses import dataclass
from typing import Literal

Form = Literal["chain", "difference", "larger", "smaller"]
"""`chain` asks for the last value, `difference` for a number, `larger` and `smaller` for a name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """One look-up: a relation of a subject, and the value that its passage states."""

    subject: str
    kind: str
    """Kind of the subject."""
    label: str
    value: str
    target: str | None
    """Entity that the value names."""
    is_named: bool
    """Whether the value is a name or code rather than a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Look-ups of which each is about the value found by the one before."""

    source: str
    cluster: str
    hops: tuple[Hop, ...]

    @property
    def start(self) -> Hop:
        """The first look-up."""
        return self.hops[0]

    @property
    def end(self) -> Hop:
        """The last look-up."""
        return self.hops[-1]

    @property
    def path(self) -> tuple[str, ...]:
        """Kind of the start, then the label of each hop."""
        return (self.start.kind, *(hop.label for hop in self.hops))

    @property
    def names(self) -> tuple[str, ...]:
        """Named entities and codes on the chain, in order of appearance."""
        named = (hop.value for hop in self.hops if hop.is_named)
        return tuple(dict.fromkeys((self.start.subject, *named)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A question in the abstract, with its answer."""

    form: Form
    branches: tuple[Chain, ...]
    """One chain, or the two that are combined."""
    answer: str

    @property
    def hops(self) -> tuple[Hop, ...]:
        """All look-ups in the order of the solution."""
        return tuple(hop for branch in self.branches for hop in branch.hops)

    @property
    def key(self) -> tuple[str, ...]:
        """Identity within one graph."""
        ways = ((branch.start.subject, *branch.path) for branch in self.branches)
        return (self.form, *(part for way in ways for part in way))

    @property
    def shape(self) -> tuple[str, ...]:
        """What problems of one kind have in common: form and paths."""
        return (self.form, *(part for branch in self.branches for part in branch.path))

    @property
    def names(self) -> tuple[str, ...]:
        """Named entities and codes of all branches."""
        return tuple(dict.fromkeys(name for branch in self.branches for name in branch.names))
