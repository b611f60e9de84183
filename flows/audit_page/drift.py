"""Config drift: the settings that the runs of the page used, beside those of the paper and of its script.

What the paper states is read from the tables of docs/paper-to-code.md, what was used from the run records.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import yaml

from afm.errors import UserError
from afm.plain_yaml import parse_yaml
from afm.report.page import PageSection
from afm.report.tables import Table

MAP = "docs/paper-to-code.md"
UNSTATED = "-"
"""What the map writes where nothing is stated."""
_KEY = re.compile(r"`([\w.<>]+)`")
_QUOTED = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BY_SCALE = re.compile(r"([^,()]+) \((\d+B)\)")
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?")

Row = Mapping[str, str]


class Verdict(StrEnum):
    """How a setting stands to the paper."""

    DIFFERS = "other than in the paper"
    WORDS = "stated in words, to be compared by a reader"
    SAME = "as in the paper"
    UNSTATED = "not stated there"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting of some runs."""

    key: str
    of: str
    """Agent and scale; empty where it holds for all."""
    used: str
    changed_from: str | None
    """What the map says this project ships, where the runs used something else."""
    paper: str
    script: str
    verdict: Verdict
    why: str


def drift_section(
    text: str, params: Mapping[str, Any], cells: Sequence[tuple[str, str]]
) -> PageSection:
    """Tabulate settings, those that differ first.

    Args:
        text: of docs/paper-to-code.md.
        params: the sections that the runs used, as a tree.
        cells: agents and scales that have been trained.
    """
    found = settings(text, params, cells)
    counts = [f"{sum(one.verdict is verdict for one in found)} {verdict}" for verdict in Verdict]
    changed = sum(one.changed_from is not None for one in found)
    return PageSection(
        id="drift",
        title="Settings beside the paper's",
        note=f"{'; '.join(counts)}. {changed} changed from what this project ships, each marked with that value. "
        f"What the paper and its script say, and why we differ, is from {MAP}.",
        tables=tuple(table for verdict in Verdict if (table := _table(found, verdict)).rows),
    )


CAPTIONS = {
    Verdict.DIFFERS: "Settings that differ from the paper",
    Verdict.WORDS: "Settings to compare by reading",
    Verdict.SAME: "Settings as in the paper",
    Verdict.UNSTATED: "Settings that the paper does not state",
}


def _table(found: Sequence[Setting], verdict: Verdict) -> Table:
    def used(one: Setting) -> str:
        return one.used + (f" (changed from {one.changed_from})" if one.changed_from else "")

    return Table(
        caption=CAPTIONS[verdict],
        head=("setting", "of", "used here", "paper", "official script", "why"),
        rows=tuple(
            (one.key, one.of or "all", used(one), one.paper, one.script, one.why)
            for one in found
            if one.verdict is verdict
        ),
        is_folded=verdict is not Verdict.DIFFERS,
    )


def settings(
    text: str, params: Mapping[str, Any], cells: Sequence[tuple[str, str]]
) -> list[Setting]:
    """Return every setting of the map that some run used."""
    found: list[Setting] = []
    for row in markdown_rows(text):
        keys = _KEY.findall(row.get("Params", ""))
        if len(keys) == 1 and "Agent" in row:
            found += _by_scale(row, keys[0], params, cells)
        elif "Paper's value" in row:
            for key in keys:
                found += _general(row, key, params, cells, is_alone=len(keys) == 1)
    return found


def markdown_rows(text: str) -> Iterator[Row]:
    """Yield the rows of all tables of a Markdown text, by column.

    Raises:
        UserError: a row has more or fewer cells than its table's head.
    """
    head: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            head = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not head:
            head = cells
        elif set("".join(cells)) - set("-: "):
            if len(cells) != len(head):
                raise UserError(f"{len(cells)} cells under a head of {len(head)}: {line}")
            yield dict(zip(head, cells, strict=True))


def _by_scale(
    row: Row, key: str, params: Mapping[str, Any], cells: Sequence[tuple[str, str]]
) -> Iterator[Setting]:
    for agent, scale in cells:
        if row["Agent"] in ("all", agent):
            used = _look_up(params, key.replace("<scale>", scale), agent)
            if used is not None:
                of = f"{agent}, {scale}"
                yield _setting(row, key, of, used, row.get(scale, ""), row["Paper"], scale)


def _general(
    row: Row,
    key: str,
    params: Mapping[str, Any],
    cells: Sequence[tuple[str, str]],
    *,
    is_alone: bool,
) -> Iterator[Setting]:
    seen = set()
    for agent, scale in cells:
        full = key.replace("<agent>", agent).replace("<scale>", scale)
        used = _look_up(params, full, agent)
        if used is not None and full not in seen:
            seen.add(full)
            names = {"<agent>": agent, "<scale>": scale}
            of = ", ".join(name for mark, name in names.items() if mark in key)
            made = _setting(row, key, of, used, row["Ours"], row["Paper's value"], scale)
            # Here the paper's word for a thing need not be ours: `product` is `answer_times_format`.
            is_word = isinstance(used, str) and made.verdict is Verdict.DIFFERS
            is_shared = not is_alone and made.verdict is not Verdict.UNSTATED
            yield replace(made, verdict=Verdict.WORDS) if is_word or is_shared else made


def _setting(
    row: Row, key: str, of: str, used: Any, shipped: str, paper: str, scale: str
) -> Setting:
    known = shipped.strip("`") if _QUOTED.fullmatch(shipped) else None
    return Setting(
        key=key,
        of=of,
        used=_shown(used),
        changed_from=known if known and parse_yaml(known) != _plain(used) else None,
        paper=plain_text(paper),
        script=plain_text(row["Official script"]),
        verdict=compare(used, paper, scale),
        why=plain_text(row["Why ours"]),
    )


def compare(used: Any, paper: str, scale: str) -> Verdict:
    """Say how a value stands to what the paper says of it."""
    if paper == UNSTATED:
        return Verdict.UNSTATED
    by_scale = {name.lower(): text for text, name in _BY_SCALE.findall(paper)}
    stated = _value(by_scale.get(scale, "several scales") if by_scale else paper)
    if stated is None or isinstance(used, list | dict | bool):
        return Verdict.WORDS
    if isinstance(used, str) != isinstance(stated, str):
        return Verdict.WORDS
    return Verdict.SAME if stated == used else Verdict.DIFFERS


def _value(text: str) -> float | str | None:
    """Read a number, a share in per cent, or a single word; None for anything longer."""
    text = text.strip().strip("`")
    share = text.endswith("%")
    if _NUMBER.fullmatch(text.removesuffix("%")):
        return float(text.removesuffix("%").replace(",", "")) / (100 if share else 1)
    return text if re.fullmatch(r"[A-Za-z]\w*", text) else None


def _look_up(params: Mapping[str, Any], key: str, agent: str) -> Any:
    """Return a leaf; what `by_agent` says counts before the rest of its section."""
    *parents, name = key.split(".")
    section: Any = params
    for part in parents:
        section = section.get(part) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping):
        return None
    own = (section.get("by_agent") or {}).get(agent) or {}
    return own.get(name, section.get(name))


def _plain(value: Any) -> Any:
    """Return a response schedule as the map writes it, and any other value as it is."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        stages = [
            f"{stage.get('max_response_tokens')}"
            + (f" after step {stage['from_step']}" if stage.get("from_step") else "")
            for stage in value
        ]
        return parse_yaml("; ".join(stages))
    return value


def _shown(value: Any) -> str:
    """Write a value as params.yaml would, on one line."""
    plain = _plain(value)
    if isinstance(plain, str):
        return plain
    lines = yaml.safe_dump(plain, default_flow_style=True, width=math.inf).splitlines()
    return str(lines[0])


def plain_text(cell: str) -> str:
    """Take links and quotes of code out of a cell."""
    return _LINK.sub(r"\1", cell).replace("`", "")


def merged(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Lay trees over each other; the last one wins."""
    found: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            old = found.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                found[key] = merged([old, value])
            else:
                found[key] = value
    return found
