"""How far a judge can be trusted: its verdicts on the gold set, whose own are known."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from afm.averages import share
from afm.errors import UserError
from afm.progress import Progress
from afm.rewards.gold_pairs import GoldPair, read_pairs
from afm.rewards.llm_judge import Judgements, LlmJudge, judge_each

_QUOTED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """One judge on the gold set."""

    golds: tuple[GoldPair, ...]
    judgements: Judgements

    @property
    def agreement(self) -> float:
        """Share of the gold set with the known verdict; a pair without one is no agreement."""
        return share(
            sum(self._verdict(gold) is gold.correct for gold in self.golds), len(self.golds)
        )

    @property
    def false_accepts(self) -> float:
        """Share of the wrong answers that are judged correct."""
        wrong = [gold for gold in self.golds if not gold.correct]
        return share(sum(self._verdict(gold) is True for gold in wrong), len(wrong))

    @property
    def false_rejects(self) -> float:
        """Share of the right answers that are judged incorrect."""
        right = [gold for gold in self.golds if gold.correct]
        return share(sum(self._verdict(gold) is False for gold in right), len(right))

    @property
    def unjudged_share(self) -> float:
        """Share of the gold set without a verdict."""
        return share(len(self.judgements.unjudged), len(self.golds))

    def by_category(self) -> dict[str, tuple[int, int]]:
        """Return for each category how many pairs are missed, and of how many."""
        missed = Counter(g.category for g in self.golds if self._verdict(g) is not g.correct)
        total = Counter(gold.category for gold in self.golds)
        return {category: (missed[category], count) for category, count in total.items()}

    def metrics(self, prefix: str) -> dict[str, float]:
        """Return the numbers, for instance `score/judge/agreement`."""
        return {
            f"{prefix}/judge/agreement": self.agreement,
            f"{prefix}/judge/false_accepts": self.false_accepts,
            f"{prefix}/judge/false_rejects": self.false_rejects,
            f"{prefix}/judge/unjudged_share": self.unjudged_share,
        }

    def check(self, name: str, min_agreement: float) -> None:
        """Check that the judge may decide about rewards.

        Raises:
            UserError: it agrees with too few known verdicts; says where it fails.
        """
        if self.agreement >= min_agreement:
            return
        missed = Counter({category: count for category, (count, _) in self.by_category().items()})
        raise UserError(
            f"judge {name!r} agrees with {self.agreement:.3f} of the gold set, below judge.asking.min_agreement "
            f"{min_agreement}; false accepts {self.false_accepts:.3f}, false rejects {self.false_rejects:.3f}, "
            f"unjudged {self.unjudged_share:.3f}. It fails most at {missed.most_common(_QUOTED)}"
            f"{self._why_unjudged()}; choose another judge"
        )

    def _verdict(self, gold: GoldPair) -> bool | None:
        found = self.judgements.verdicts.get(gold.pair)
        return None if found is None else found.correct

    def _why_unjudged(self) -> str:
        reasons = list(self.judgements.unjudged.values())
        return f"; one without a verdict: {reasons[0]}" if reasons else ""


async def calibrate(judge: LlmJudge, golds: Sequence[GoldPair] | None = None) -> Calibration:
    """Judge the gold set.

    Raises:
        UserError: the gold set or the cache is broken.
    """
    known = tuple(read_pairs() if golds is None else golds)
    judgements = await judge_each(
        judge, [gold.pair for gold in known], Progress(len(known), "gold pairs judged")
    )
    return Calibration(golds=known, judgements=judgements)
