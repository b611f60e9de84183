"""The tree of `afm audit explain`, for people."""

from collections.abc import Iterator

from flows.audit.details import Costs
from flows.audit.explain import Content, Explanation, Link, Rows
from flows.audit.render import counts, duration, listed, moment, short


def tree(explanation: Explanation) -> Iterator[str]:
    """Yield the lines: the model, then each run under what it made, then terms and costs."""
    model = explanation.model
    yield f"model {model.path}  md5 {model.md5}"
    yield from (f"  registered as {name}" for name in explanation.names)
    links = {link.run.entry: link for link in explanation.links}
    yield from _under(model.run.entry, links, set(), "")
    yield ""
    yield from _terms(explanation)
    yield f"cost of the chain: {_costs(explanation.total)}"


def _under(entry: str, links: dict[str, Link], shown: set[str], margin: str) -> Iterator[str]:
    link = links[entry]
    if entry in shown:
        yield f"{margin}└─ {link.run.cell}: see above"
        return
    shown.add(entry)
    yield f"{margin}└─ {link.run.cell}  {link.run.identity or 'without a record'}  {moment(link.run.started)}"
    inner = f"{margin}   "
    yield from (f"{inner}│ {line}" for line in _facts(link))
    for number, read in enumerate(link.reads):
        is_last = number == len(link.reads) - 1
        yield f"{inner}{'└' if is_last else '├'}─ {_content(read.content)}"
        below = f"{inner}{' ' if is_last else '│'}  "
        if read.made_by is None:
            yield f"{below}└─ given: no run wrote it"
        else:
            yield from _under(read.made_by, links, shown, below)


def _facts(link: Link) -> Iterator[str]:
    run = link.run
    if link.record is None:
        yield f"known from dvc.lock alone, git blob {short(run.content)}, commit {short(run.git_commit)}"
    else:
        dirty = ", with changes that no commit holds" if run.git_dirty else ""
        yield f"record {link.record}  md5 {short(run.content)}"
        yield f"commit {short(run.git_commit)}{dirty}; flow run {run.pipeline_run or 'none: by hand'}"
        where = " ".join(filter(None, (link.executor, link.job, *link.images)))
        yield f"{where}; {link.environment}; constraints {short(link.constraints)}"
    for label, value in (
        ("sources", listed(link.sources)),
        ("teacher", link.teacher),
        ("judge", link.judge),
    ):
        if value:
            yield f"{label}: {value}"
    if link.endpoints:
        yield f"served as: {listed(link.endpoints)}"
    if link.costs:
        yield _costs(link.costs)
    yield from (f"wrote {_content(content)}" for content in link.wrote if content.rows)


def _content(content: Content) -> str:
    told = holds_text(content)
    return f"{content.path}  md5 {short(content.md5)}{f'  ({told})' if told else ''}"


def holds_text(content: Content) -> str:
    """Say what rows a file or folder holds; nothing where it holds none."""
    return "; ".join(
        f"{name}: {_rows(rows)}" if name else _rows(rows) for name, rows in content.rows.items()
    )


def _rows(rows: Rows) -> str:
    if rows.dropped:
        kept = rows.rows - sum(rows.dropped.values())
        return f"{kept} of {rows.rows} kept; dropped: {counts(rows.dropped)}"
    text = f"{rows.rows} rows"
    if rows.items != rows.rows:
        text += f" of {rows.items} items"
    return text if rows.queries == rows.items else f"{text}, {rows.queries} queries"


def _terms(explanation: Explanation) -> Iterator[str]:
    yield f"licence of the base model: {explanation.licence or 'not known'}"
    for one in explanation.licences:
        yield f"  {one.of}, {one.part}: {one.licence} ({one.terms})"
    yield from (f"CONFLICT or doubt: {flag}" for flag in explanation.flags)


def _costs(costs: Costs) -> str:
    gpu = "GPU time not counted" if costs.gpu_s is None else f"{costs.gpu_s:.0f} GPU s"
    money = "no price" if costs.money is None else f"{costs.money:.2f} currency units"
    tokens = f"{costs.prompt_tokens} prompt and {costs.completion_tokens} completion tokens"
    return f"{duration(costs.wall_s)}, {gpu}, {tokens}, {money}"
