"""The scripted and the recorded teacher."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from afm.errors import UserError
from afm.jsonl import write_rows
from afm.params.agents import AgentParams
from afm.params.rollout import MistakeShares, RecordingParams, TeacherParams
from afm.params.root import read_params
from afm.tags import double_check_score, violations
from afm.teachers import flawless, open_teacher
from afm.teachers.demonstrate import Demonstration, Setting, demonstrate
from afm.teachers.script import MISTAKES
from afm.teachers.scripted import drawn_mistake
from afm.teachers.search_script import GIVEN_UP
from afm.types import Query, Step, StepKind, StopReason
from tests.unit.teacher_world import code_queries, make_world_index, question, world_queries

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml")
SCRIPTED = PARAMS.teacher


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world_index(tmp_path_factory.mktemp("index"))


def only(mistake: str | None) -> TeacherParams:
    """A teacher that always makes one mistake."""
    shares = {name: float(name == mistake) for name in MISTAKES}
    return SCRIPTED.model_copy(update={"mistakes": MistakeShares(**shares)})


def agent_params(agent: str, grammar: str | None = None) -> AgentParams:
    params: AgentParams = PARAMS.agents[agent]  # type: ignore[index]
    return params.model_copy(update={"grammar": grammar} if grammar else {})


def play(
    teacher: TeacherParams,
    index: Path,
    agent: str = "mhqa",
    grammar: str | None = None,
    queries: Sequence[Query] | None = None,
) -> list[Demonstration]:
    asked = queries or (code_queries() if agent == "code" else world_queries(agent))
    setting = Setting(
        agent=agent,
        agent_params=agent_params(agent, grammar),
        teacher=teacher,
        tools=PARAMS.tools,
        sandbox=PARAMS.sandbox,
        index=index,
        cell="rollout@test",
        num_samples=2,
        seed=5,
        concurrency=4,
    )
    return demonstrate(setting, asked)


def broken(done: Demonstration, agent: str, grammar: str | None = None) -> tuple[str, ...]:
    params, trajectory = agent_params(agent, grammar), done.trajectory
    return violations(trajectory.steps, params.grammar, params.tools, trajectory.segments)


def of_kind(done: Demonstration, kind: StepKind) -> list[Step]:
    return [step for step in done.trajectory.steps if step.kind is kind]


def activations(done: Demonstration) -> int:
    quiet = (StepKind.THOUGHT, StepKind.OBSERVATION)
    return sum(step.kind not in quiet for step in done.trajectory.steps)


def is_right(done: Demonstration) -> bool:
    trajectory = done.trajectory
    return not trajectory.answers or any(a in (trajectory.answer or "") for a in trajectory.answers)


CELLS = [("mhqa", "double_check"), ("mhqa", "six_functions"), ("web", "double_check")]


@pytest.mark.parametrize(("agent", "grammar"), [*CELLS, ("code", "plan_first")])
def test_a_flawless_teacher_answers_and_breaks_no_rule(
    agent: str, grammar: str, index: Path
) -> None:
    for done in play(flawless(SCRIPTED), index, agent, grammar):
        assert done.mistake is None
        assert done.trajectory.stop_reason is StopReason.ANSWERED
        assert is_right(done)
        assert broken(done, agent, grammar) == ()
        assert of_kind(done, StepKind.REFLECTION)
        spoken = [step for step in done.trajectory.steps if step.kind is not StepKind.OBSERVATION]
        assert all(step.role for step in spoken)
        assert done.trajectory.policy == "teacher:scripted"


def test_what_is_used_is_quoted_and_combined(index: Path) -> None:
    done = play(flawless(SCRIPTED), index)[-1]
    thoughts = [step.text for step in of_kind(done, StepKind.THOUGHT)]
    assert "It says: Atomic number: 26. Next: Gold." in thoughts
    assert "79 - 26 = 53" in thoughts
    assert done.trajectory.answer == "53"
    plans = of_kind(play(flawless(SCRIPTED), index)[4], StepKind.PLAN)
    assert [step.text for step in plans] == ["1. country of Lyon 2. its capital"]


@pytest.mark.parametrize(("agent", "grammar"), CELLS)
def test_too_few_steps(agent: str, grammar: str, index: Path) -> None:
    for done in play(only("too_few_steps"), index, agent, grammar):
        assert activations(done) < 5
        assert not of_kind(done, StepKind.PLAN)
        assert not of_kind(done, StepKind.REFLECTION)
        assert is_right(done)


@pytest.mark.parametrize(("agent", "grammar"), [*CELLS, ("code", "plan_first")])
def test_redundant_call(agent: str, grammar: str, index: Path) -> None:
    for done in play(only("redundant_call"), index, agent, grammar):
        calls = [(step.tool, step.text) for step in of_kind(done, StepKind.TOOL_CALL)]
        assert len(set(calls)) < len(calls)
        assert broken(done, agent, grammar) == ()
        assert is_right(done)


@pytest.mark.parametrize(("agent", "grammar"), CELLS)
def test_wrong_answer(agent: str, grammar: str, index: Path) -> None:
    for done in play(only("wrong_answer"), index, agent, grammar):
        assert done.mistake == "wrong_answer"
        assert not is_right(done)
        assert broken(done, agent, grammar) == ()
        assert activations(done) >= 4


def test_wrong_code(index: Path) -> None:
    boxed, _, function, *_ = play(only("wrong_answer"), index, "code")
    assert "42" not in (boxed.trajectory.answer or "")
    assert "return None" in (function.trajectory.answer or "")


@pytest.mark.parametrize(("agent", "grammar"), [*CELLS, ("code", "plan_first")])
def test_missing_reflection(agent: str, grammar: str, index: Path) -> None:
    for done in play(only("missing_reflection"), index, agent, grammar):
        assert not of_kind(done, StepKind.REFLECTION)
        assert broken(done, agent, grammar) == ()
        assert is_right(done)
        if grammar == "double_check":
            assert activations(done) >= 5


@pytest.mark.parametrize(("agent", "grammar"), [*CELLS, ("code", "plan_first")])
def test_instruction_violation(agent: str, grammar: str, index: Path) -> None:
    for done in play(only("instruction_violation"), index, agent, grammar):
        assert len(broken(done, agent, grammar)) == 1
        assert is_right(done)
        assert activations(done) >= 4


@pytest.mark.parametrize("agent", ["mhqa", "web"])
def test_late_correction(agent: str, index: Path) -> None:
    done = play(only("late_correction"), index, agent)
    corrected = [d for d in done if d.mistake == "late_correction"]
    assert len(corrected) >= 6
    for each in corrected:
        first, *_, last = [
            double_check_score(step.text) for step in of_kind(each, StepKind.DOUBLE_CHECK)
        ]
        assert first in (1, 2)
        assert last == 4
        suggested = [step.text for step in of_kind(each, StepKind.SUGGESTED_ANSWER)]
        assert suggested[0] != suggested[-1]
        assert len(of_kind(each, StepKind.PLAN)) == 2
        assert is_right(each)
        assert broken(each, agent) == ()


@pytest.mark.parametrize(("agent", "grammar"), CELLS)
def test_detour(agent: str, grammar: str, index: Path) -> None:
    done = [d for d in play(only("detour"), index, agent, grammar) if d.mistake == "detour"]
    assert done
    for each in done:
        reflections = [step.text for step in of_kind(each, StepKind.REFLECTION)]
        assert reflections[0].startswith("This is about ")
        assert is_right(each)
        assert broken(each, agent, grammar) == ()
        calls = [step.text for step in of_kind(each, StepKind.TOOL_CALL)]
        assert len(set(calls)) == len(calls)


@pytest.mark.parametrize(("agent", "grammar"), [*CELLS, ("code", "plan_first")])
def test_unfinished(agent: str, grammar: str, index: Path) -> None:
    """It knows the answer, breaks no rule, and is cut off by the limits of the rollout loop."""
    limit = agent_params(agent).max_tool_calls
    for done in play(only("unfinished"), index, agent, grammar):
        trajectory = done.trajectory
        cut = trajectory.num_tool_calls, trajectory.stop_reason
        too_long = trajectory.stop_reason is StopReason.MAX_TOKENS and trajectory.num_tool_calls > 2
        assert cut == (limit, StopReason.MAX_TOOL_CALLS) or too_long, cut
        assert not of_kind(done, StepKind.ANSWER)
        assert len(of_kind(done, StepKind.TOOL_CALL)) == trajectory.num_tool_calls + 1
        assert broken(done, agent, grammar) == ("no_answer",)
        assert activations(done) >= 5


def test_a_typo_in_code_is_corrected(index: Path) -> None:
    for done in play(only("detour"), index, "code"):
        first, second, *_ = of_kind(done, StepKind.OBSERVATION)
        assert first.text.startswith("[FAILED]")
        assert second.text.startswith("[EXECUTED]")
        assert is_right(done)
        assert broken(done, "code") == ()


def test_the_text_does_not_name_its_mistake(index: Path) -> None:
    for mistake in MISTAKES:
        for done in play(only(mistake), index):
            assert mistake not in done.trajectory.model_dump_json()


def test_mistakes_are_drawn_by_their_shares() -> None:
    shares = SCRIPTED.mistakes
    drawn = [drawn_mistake(shares, n / 10_000) for n in range(10_000)]
    for name in MISTAKES:
        assert drawn.count(name) == pytest.approx(10_000 * getattr(shares, name), abs=1)


def test_seeds_decide(index: Path) -> None:
    first, again = play(SCRIPTED, index), play(SCRIPTED, index)
    assert [d.trajectory for d in first] == [d.trajectory for d in again]
    assert len({d.trajectory.trajectory_id for d in first}) == len(first)


def test_a_page_that_is_not_there(index: Path) -> None:
    lost = question("mhqa", "Capital of Italy?", "Rome", "chain1-a", ("Italy", "capital", "Rome"))
    for done in play(flawless(SCRIPTED), index, queries=[lost]):
        assert done.trajectory.answer == GIVEN_UP
        assert done.trajectory.num_tool_calls == 2


def test_a_query_without_solution_is_refused(index: Path) -> None:
    query = world_queries("mhqa")[0].model_copy(update={"solution": ()})
    with pytest.raises(UserError, match=f"{query.query_id} has no solution chain"):
        play(SCRIPTED, index, queries=[query])


def recorded(path: Path, sha256: str | None = None) -> TeacherParams:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    return SCRIPTED.model_copy(
        update={
            "kind": "recorded",
            "name": "scripted",
            "recording": RecordingParams(path=str(path), sha256=sha256 or found),
        }
    )


def test_recordings_replay_exactly(index: Path, tmp_path: Path) -> None:
    original = [d.trajectory for d in play(SCRIPTED, index) if d.trajectory.sample_index == 0]
    path = tmp_path / "recording.jsonl"
    write_rows(path, original)
    nowhere = make_world_index(tmp_path / "other")
    replayed = [d.trajectory for d in play(recorded(path), nowhere)]
    assert [t.segments for t in replayed if t.sample_index == 0] == [t.segments for t in original]
    assert [t.steps for t in replayed if t.sample_index == 0] == [t.steps for t in original]


def test_recordings_are_pinned_and_complete(index: Path, tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    write_rows(path, [play(SCRIPTED, index)[0].trajectory])
    with pytest.raises(UserError, match="lacks 4 queries"):
        play(recorded(path), index)
    with pytest.raises(UserError, match="sha256"):
        play(recorded(path, "0" * 64), index)
    without = SCRIPTED.model_copy(update={"kind": "recorded"})
    with pytest.raises(UserError, match="must name path and sha256"):
        open_teacher(without, agent_params("mhqa"), [])


def test_sessions_are_independent() -> None:
    teacher = open_teacher(flawless(SCRIPTED), agent_params("mhqa"), world_queries("mhqa"))
    sessions = [teacher.session(query, 1) for query in world_queries("mhqa")[:2]]
    texts = [asyncio.run(session.act(100)).text for session in sessions]
    assert "France" in texts[0]
    assert "Spain" in texts[1]
