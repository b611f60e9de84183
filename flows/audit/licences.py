"""Which licences a model rests on, and which of them its own licence cannot carry. The one table of terms is here."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from afm.plain_yaml import parse_yaml

Terms = Literal["permissive", "attribution", "share-alike", "non-commercial", "unknown"]

TERMS: tuple[tuple[str, Terms], ...] = (
    (r"\bnc\b|non-?commercial|research.only|academic", "non-commercial"),
    (r"\bsa\b|share-?alike|\ba?gpl|\blgpl|odbl|copyleft", "share-alike"),
    (r"cc-by|odc-by|attribution", "attribution"),
    (r"apache|\bmit\b|\bbsd|\bisc\b|public.domain|\bcc0|unlicense|\bpddl", "permissive"),
)
"""Pattern in a licence's name -> its terms; the first that fits counts, so that CC-BY-NC-SA is non-commercial."""
CONFLICTS: frozenset[tuple[Terms, Terms]] = frozenset(
    (source, model)
    for source in ("non-commercial", "share-alike")
    for model in ("permissive", "attribution")
)
"""Terms of what goes in, terms of the model: these two do not go together."""
WEIGHTS = "weights"
"""The part of a base model that has a licence."""
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Licence:
    """The terms of one thing that went into a model."""

    of: str
    """Name of the source, or of the base model."""
    part: str
    """Which part of it: `code`, `data`, `weights`; with the package that holds it."""
    licence: str
    """As it calls itself."""

    @property
    def terms(self) -> Terms:
        """Return what sort of licence it is."""
        return terms_of(self.licence)


def terms_of(licence: str) -> Terms:
    """Return what sort of licence a name means; `unknown` for one that the table does not know."""
    name = licence.lower().replace("_", "-")
    return next((terms for pattern, terms in TERMS if re.search(pattern, name)), "unknown")


def flags(licences: Sequence[Licence], model: str | None) -> list[str]:
    """Say which licences a model that is under `model` cannot carry, and which nobody has judged."""
    found = []
    for one in licences:
        if one.terms == "unknown":
            found.append(
                f"{one.of} {one.part}: {one.licence!r} is not in the table of licences: look at it"
            )
        elif model is not None and (one.terms, terms_of(model)) in CONFLICTS:
            found.append(
                f"{one.of} {one.part}: {one.licence} is {one.terms}, but the model says {model}"
            )
    if model is None:
        found.append("the base model names no licence")
    return found


def of_card(card: str) -> Iterator[Licence]:
    """Read the sources of a data card: the table that `afm.cards` writes."""
    head: list[str] = []
    for line in card.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif "licence of data" in head and not set("".join(cells)) <= set("-: "):
            row = dict(zip(head, cells, strict=False))
            package = _LINK.sub(r"\1", row["package"])
            label = " ".join(filter(None, (package, row["version"])))
            for part in ("code", "data"):
                yield Licence(
                    of=row["source"], part=f"{part} ({label})", licence=row[f"licence of {part}"]
                )


def of_readme(text: str) -> str | None:
    """Return the licence in the front matter of a model card, or None."""
    parts = text.split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return None
    fields: Any = parse_yaml(parts[1])
    return str(fields["license"]) if isinstance(fields, dict) and fields.get("license") else None
