"""`prepare`: which queries and passages exist."""

from typing import Annotated

from pydantic import Field

from afm.ids import text_sha256
from afm.params._model import AgentName, Positive, Section, Share
from afm.types import Query

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class QueryCounts(Section):
    """How many queries one agent gets per split [queries]."""

    sft: Positive
    rl: Positive
    eval: Positive


class ExcludeParams(Section):
    """Rows that must not enter any later set."""

    query_ids: Annotated[tuple[str, ...], Field(strict=False)]
    question_sha256: Annotated[tuple[Sha256, ...], Field(strict=False)]
    """sha256 of a question's text in UTF-8: leaves it out, whatever its answers, without saying what it asks."""
    sources: Annotated[tuple[str, ...], Field(strict=False)]

    def leaves_out(self, query: Query) -> bool:
        """Tell whether a query must enter no set; sources are left out before any query is made."""
        return (
            query.query_id in self.query_ids or text_sha256(query.question) in self.question_sha256
        )


class PrepareParams(Section):
    """Section `prepare`."""

    seed: int
    sources: dict[AgentName, Annotated[tuple[str, ...], Field(strict=False, min_length=1)]]
    """Keys of `afm.sources.SOURCES` per agent."""
    cities_per_country: Positive
    """Largest cities of each country that get a passage [cities]."""
    held_out_entities: Share
    """Share of the entity clusters that only held-out questions may use."""
    hop_shares: Annotated[tuple[Share, Share, Share, Share], Field(strict=False)]
    """Shares of questions with chains of 1, 2, 3 and 4 hops; those up to `max_hops` count."""
    combined_share: Share
    """Share of questions that compare or subtract what two chains find."""
    counts: dict[str, QueryCounts]
    """Per agent."""
    max_hops: Annotated[int, Field(ge=1, le=4)]
    exclude: ExcludeParams
