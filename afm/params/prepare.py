"""`prepare`: which queries and passages exist."""

from typing import Annotated

from pydantic import Field

from afm.params._model import Positive, Section, Share


class QueryCounts(Section):
    """How many queries one agent gets per split [queries]."""

    sft: Positive
    rl: Positive
    eval: Positive


class ExcludeParams(Section):
    """Rows that must not enter any later set."""

    query_ids: Annotated[tuple[str, ...], Field(strict=False)]
    sources: Annotated[tuple[str, ...], Field(strict=False)]


class PrepareParams(Section):
    """Section `prepare`."""

    seed: int
    held_out_entities: Share
    """Share of the entity clusters that only held-out questions may use."""
    counts: dict[str, QueryCounts]
    """Per agent."""
    max_hops: Annotated[int, Field(ge=1, le=4)]
    exclude: ExcludeParams
