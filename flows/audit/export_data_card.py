"""Hugging Face dataset cards of what a model was trained on: the queries, the accepted set, the selected queries."""

from collections.abc import Iterator

from afm.card_sizes import size_category
from flows.audit.explain import CARD, Content, Explanation, Link
from flows.audit.formats import TRAINING, file_name
from flows.audit.index import Index
from flows.audit.licences import WEIGHTS, of_readme
from flows.audit.locate import Hint
from flows.audit.render import counts, moment

WHAT = {
    "filter": "Trajectories that passed the filters, as often as they are weighted: what SFT imitates.",
    "select": "Queries that are neither too easy nor too hard for the policy: what reinforcement draws from.",
}
"""By stage: what its data set is."""


def data_cards(index: Index, explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield cell and card of each data set under a model; that of the queries is the one that `prepare` wrote."""
    own = {link.run.cell: _prepared(index, link) for link in explanation.links}
    cards = {cell: card for cell, card in own.items() if card}
    yield from cards.items()
    licence = next(filter(None, map(of_readme, cards.values())), None)
    for link in explanation.links:
        for content in link.wrote:
            if link.run.stage in WHAT and file_name(content.path) in TRAINING.values():
                yield link.run.cell, _card(explanation, link, content, licence)


def _prepared(index: Index, link: Link) -> str | None:
    run = link.run
    for path, md5 in run.outs.items() if run.stage == "prepare" else ():
        if file_name(path) == CARD:
            body = index.contents.read(md5, Hint(identity=run.identity, path=path))
            return body.decode() if body else None
    return None


def _card(explanation: Explanation, link: Link, content: Content, licence: str | None) -> str:
    ledgers = [one for one in link.wrote if file_name(one.path) == "ledger.jsonl"]
    told = [
        f"Of {rows.rows} rows that were judged, these were dropped: {counts(rows.dropped)}."
        for one in ledgers
        for rows in one.rows.values()
    ]
    sources = [one for one in explanation.licences if one.part != WEIGHTS]
    rows = sum(one.rows for one in content.rows.values())
    made = f"Made by stage run `{link.run.cell}`, identity `{link.run.identity or 'none'}`, {moment(link.run.ended)}."
    parts = (
        f"---\n{_front_matter(link, content, rows, licence)}\n---\n",
        f"# {_title(link)}\n",
        WHAT[link.run.stage],
        f"`{content.path}`, md5 `{content.md5}`, {rows} rows.",
        made,
        *told,
        f"The ledger, row by row, is in `runs/{link.run.cell}/` of the bundle.",
        "\n## Licences\n",
        *(f"- {one.of}, {one.part}: {one.licence} ({one.terms})" for one in sources),
    )
    return "\n".join((*parts, ""))


def _title(link: Link) -> str:
    return f"AFM Pipeline, data set of {link.run.cell}"


def _front_matter(link: Link, content: Content, rows: int, licence: str | None) -> str:
    from huggingface_hub import DatasetCardData

    data = DatasetCardData(
        license=licence,
        pretty_name=_title(link),
        task_categories=["text-generation"],
        size_categories=[size_category(rows)],
        tags=["agents", "chain-of-agents", *(f"{k}:{v}" for k, v in sorted(link.run.axes.items()))],
        configs=[{"config_name": "default", "data_files": file_name(content.path)}],
    )
    return str(data.to_yaml())
