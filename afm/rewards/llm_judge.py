"""A language model as the judge of answers (paper 3.3), with three outcomes: correct, incorrect, and no verdict.

No verdict is a `JudgeError`: never a score and never cached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from afm.chat import ModelClient
from afm.errors import JudgeError, ModelError, UserError
from afm.ids import content_id
from afm.jobs import run_many
from afm.jsonl import read_json, write_json
from afm.params.judge import AskingParams, JudgeModel
from afm.progress import Progress
from afm.rewards.judge_prompt import RESPONSE_FORMAT, Pair, check_golds, messages, read_reply
from afm.types import Query

CACHE = "verdicts"
"""Folder in scratch with the verdicts given so far: a stage that is started again does not pay for them twice."""


class Verdict(BaseModel):
    """What a judge decided; what the cache holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    correct: bool
    rationale: str


class VerdictCache:
    """Verdicts by what was asked of whom, one file each, so that several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: made on the first write."""
        self._folder = folder

    def get(self, key: str) -> Verdict | None:
        """Return a verdict that was given before.

        Raises:
            UserError: the file is not one.
        """
        path = self._path(key)
        if not path.exists():
            return None
        try:
            return Verdict.model_validate(read_json(path))
        except ValidationError as error:
            raise UserError(f"{path} is no verdict; delete the file") from error

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict."""
        write_json(self._path(key), verdict.model_dump(mode="json"))

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmJudge:
    """One judge at its endpoint."""

    client: ModelClient
    model: JudgeModel
    asking: AskingParams
    cache: VerdictCache

    async def verdict(self, pair: Pair) -> Verdict:
        """Judge one answer.

        Raises:
            JudgeError: no verdict: the endpoint failed, its replies have not the required form, the reference is
                empty, or the judge takes the answer for right whatever the reference is.
            UserError: the cache is broken.
        """
        check_golds(pair.golds)
        if not pair.answer.strip():
            return Verdict(correct=False, rationale="no answer")
        if len(pair.answer) > self.asking.max_answer_chars:
            return Verdict(correct=False, rationale="longer than judge.asking.max_answer_chars")
        key = self.key(pair)
        known = self.cache.get(key)
        if known is not None:
            return known
        verdict = await self._asked(pair)
        self.cache.put(key, verdict)
        return verdict

    def key(self, pair: Pair) -> str:
        """Hash all that a verdict depends on."""
        chat = messages(self.asking.prompt, pair)
        return content_id(
            [
                self.model.name,
                self.model.revision,
                self.asking.decoy_check,
                self.asking.max_tokens,
                chat,
            ]
        )

    async def _asked(self, pair: Pair) -> Verdict:
        verdict = await self._ask(pair)
        if verdict.correct and self.asking.decoy_check:
            decoy = await self._ask(pair.decoyed())
            if decoy.correct:
                raise JudgeError(
                    f"the judge also accepts {pair.answer[:100]!r} against a made-up reference: it goes by something "
                    f"else ({decoy.rationale[:100]!r})"
                )
        return verdict

    async def _ask(self, pair: Pair) -> Verdict:
        """Ask until the reply has the required form."""
        chat = messages(self.asking.prompt, pair)
        for number in range(self.asking.max_asks):
            text = await self._reply(chat, seed=number)
            try:
                reply = read_reply(text)
            except JudgeError:
                if number + 1 == self.asking.max_asks:
                    raise
                continue
            return Verdict(correct=reply.verdict == "correct", rationale=reply.rationale)
        raise AssertionError("max_asks is positive")

    async def _reply(self, chat: Sequence[Mapping[str, str]], seed: int) -> str:
        try:
            return await self.client.chat(
                chat,
                max_tokens=self.asking.max_tokens,
                temperature=0.0,
                seed=seed,
                response_format=RESPONSE_FORMAT,
            )
        except ModelError as error:
            raise JudgeError(f"the judge did not answer: {error}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgements:
    """What a judge said about some answers; grades those and no others."""

    verdicts: Mapping[Pair, Verdict]
    unjudged: Mapping[Pair, str]
    """Why there is no verdict."""

    def grade(self, answer: str, query: Query) -> float:
        """Return 1 for a correct answer, 0 for an incorrect one.

        Raises:
            JudgeError: there is no verdict.
        """
        pair = pair_of(answer, query)
        if pair in self.verdicts:
            return float(self.verdicts[pair].correct)
        raise JudgeError(self.unjudged.get(pair, "this answer was not shown to the judge"))


def pair_of(answer: str, query: Query) -> Pair:
    """Return what the judge sees of an answer to a query."""
    return Pair(question=query.question, golds=query.answers, answer=answer)


async def judge_each(
    judge: LlmJudge, pairs: Sequence[Pair], progress: Progress | None = None
) -> Judgements:
    """Judge answers, each once and as many at a time as the endpoint allows.

    Raises:
        UserError: the cache is broken.
    """
    distinct = list(dict.fromkeys(pairs))

    async def one(pair: Pair) -> Verdict | str:
        try:
            return await judge.verdict(pair)
        except JudgeError as error:
            return str(error)

    jobs = [partial(one, pair) for pair in distinct]
    found = await run_many(jobs, concurrency=judge.client.limits.concurrency, progress=progress)
    said = dict(zip(distinct, found, strict=True))
    return Judgements(
        verdicts={pair: one for pair, one in said.items() if isinstance(one, Verdict)},
        unjudged={pair: one for pair, one in said.items() if isinstance(one, str)},
    )
