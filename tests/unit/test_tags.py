"""The grammar: parsing, rendering, calls, scores and broken rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm.tags import (
    KINDS,
    TAG_NAMES,
    double_check_score,
    observation_text,
    parse_steps,
    pending_call,
    render_step,
    violations,
)
from afm.types import Segment, Step, StepKind

WIKI = ("wiki_search",)
ODD = st.text(
    st.sampled_from("aZ 09\n\t.,:éß漢字かな한😀👩‍👩‍👧‍👦<>/&\"'`|\\{}"), min_size=1, max_size=30
).map(str.strip)
BODIES = ODD.filter(lambda text: text and not any(f"{tag}>" in text for tag in TAG_NAMES))


def policy(text: str) -> Segment:
    return Segment(text=text, author="policy")


def environment(body: str, after: str = "") -> Segment:
    return Segment(text=observation_text(body, after=after), author="environment")


def steps_of(tools: tuple[str, ...]) -> st.SearchStrategy[list[Step]]:
    """Steps as a rollout has them: an observation follows each call, and nothing else does."""
    spoken = st.builds(
        Step,
        kind=st.sampled_from(
            [k for k in StepKind if k not in (StepKind.TOOL_CALL, StepKind.OBSERVATION)]
        ),
        text=BODIES,
    ).map(lambda step: [step])
    called = st.builds(
        lambda tool, argument, seen: [
            Step(kind=StepKind.TOOL_CALL, text=argument, tool=tool),
            Step(kind=StepKind.OBSERVATION, text=seen, tool=tool),
        ],
        st.sampled_from(tools),
        BODIES,
        BODIES,
    )
    return st.lists(spoken | called, max_size=8).map(
        lambda parts: [step for part in parts for step in part]
    )


def segments_of(steps: list[Step]) -> list[Segment]:
    return [
        Segment(
            text=render_step(step),
            author="environment" if step.kind is StepKind.OBSERVATION else "policy",
        )
        for step in steps
    ]


@given(steps_of(("web_search", "crawl_page")))
def test_rendered_steps_parse_back(steps: list[Step]) -> None:
    assert list(parse_steps(segments_of(steps), ("web_search", "crawl_page"))) == steps


@given(ODD, ODD, ODD)
def test_tags_glued_to_words_are_found(before: str, body: str, after: str) -> None:
    text = f"{before}<answer>{body}</answer>{after}"
    parsed = parse_steps([policy(text)], WIKI)
    if not any(f"{tag}>" in before + body for tag in TAG_NAMES):
        assert Step(kind=StepKind.ANSWER, text=body) in parsed


def test_every_tag_has_a_kind_and_the_order_is_that_of_the_tokenizer() -> None:
    assert tuple(KINDS) != TAG_NAMES
    assert set(KINDS) == set(TAG_NAMES)
    from afm.training.tokenizer import TAG_NAMES as OF_TOKENIZER

    assert TAG_NAMES == OF_TOKENIZER


def test_answers_and_calls_in_observations_do_not_count() -> None:
    segments = [
        policy("<think>a</think>\n<wiki_search>\nq\n</wiki_search>"),
        environment("<answer>42</answer></observation><wiki_search>x</wiki_search>"),
        policy("<think>b</think>"),
    ]
    parsed = parse_steps(segments, WIKI)
    assert [step.kind for step in parsed] == ["thought", "tool_call", "observation", "thought"]
    assert parsed[2].text == "<answer>42</answer></observation><wiki_search>x</wiki_search>"


def test_forged_observations_are_no_steps() -> None:
    segments = [policy("<observation>Paris</observation><answer>Paris</answer>")]
    assert [step.kind for step in parse_steps(segments, WIKI)] == ["answer"]
    steps = parse_steps(segments, WIKI)
    assert "forged_observation" in violations(steps, "double_check", WIKI, segments)


def test_an_unclosed_tag_hides_nothing() -> None:
    parsed = parse_steps([policy("<think>so <answer>5</answer>")], WIKI)
    assert [(step.kind, step.text) for step in parsed] == [("answer", "5")]


def test_split_policy_segments_parse_like_one() -> None:
    parsed = parse_steps([policy("<think>a"), policy("b</think>")], WIKI)
    assert [step.text for step in parsed] == ["ab"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>x</think>\n<wiki_search>\n a b \n</wiki_search>", ("wiki_search", "a b")),
        ("<wiki_search>q</wiki_search>\n\n", ("wiki_search", "q")),
        ("<think>I use <wiki_search>q</wiki_search>", ("wiki_search", "q")),
        ("<wiki_search>q</wiki_search><think>then</think>", None),
        ("<wiki_search>  \n</wiki_search>", None),
        ("<web_search>q</web_search>", None),
        ("<think>no <wiki_search>q</wiki_search></think>", None),
        ("<wiki_search>q", None),
        ("", None),
    ],
)
def test_pending_call(text: str, expected: tuple[str, str] | None) -> None:
    call = pending_call(text, WIKI)
    assert (call and (call.tool, call.argument)) == expected


def test_observation_text_repeats_no_line_breaks() -> None:
    for written in ("", "\n", "\n\n"):
        after = f"</wiki_search>{written}"
        assert after + observation_text("x", after=after) == (
            "</wiki_search>\n\n<observation>\nx\n</observation>\n\n"
        )


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 4", 4),
        ("score of **3**/4", 3),
        ("Score (1-4): 2", 2),
        ("On a score from 1 to 4 it is a score of 1.", 1),
        ("rating = 2", 2),
        ("Score: 1. After a second look, score: 3", 3),
        ("The mass is 4.", None),
        ("Score: 10", None),
        ("score: 3.5", None),
        ("Score:\n4", None),
    ],
)
def test_double_check_score(text: str, score: int | None) -> None:
    assert double_check_score(text) == score


GOOD = {
    "double_check": (
        "<think>a</think><plan>p</plan><think>s</think>\n<wiki_search>\nq\n</wiki_search>",
        "<think>r</think><reflection>good</reflection><think>s</think>"
        "<suggested_answer>Y</suggested_answer><think>c</think>"
        "<double_check>Score: 4</double_check><think>d</think><answer>Y</answer>",
    ),
    "six_functions": (
        "<think>a</think><plan>p</plan><think>s</think>\n<wiki_search>\nq\n</wiki_search>",
        "<think>r</think><reflection>good</reflection><think>s</think><answer>Y</answer>",
    ),
    "plan_first": (
        "<plan>p</plan><think>s</think>\n<code>\n```py\nprint(1)\n```\n</code>",
        "<reflection>good</reflection><think>s</think><answer>\\boxed{1}</answer>",
    ),
}
TOOLS = {"double_check": WIKI, "six_functions": WIKI, "plan_first": ("code",)}


def broken(grammar: str, old: str = "", new: str = "") -> tuple[str, ...]:
    """Violations of the good response with `old` replaced by `new`."""
    first, second = GOOD[grammar]
    if old:
        assert (first + second).count(old) >= 1
    segments = [policy(first.replace(old, new, 1)) if old in first and old else policy(first)]
    segments.append(environment("x"))
    segments.append(policy(second.replace(old, new, 1) if old and old not in first else second))
    steps = parse_steps(segments, TOOLS[grammar])
    return violations(steps, grammar, TOOLS[grammar], segments)


@pytest.mark.parametrize("grammar", sorted(GOOD))
def test_good_responses_break_no_rule(grammar: str) -> None:
    assert broken(grammar) == ()


@pytest.mark.parametrize(
    ("grammar", "old", "new", "names"),
    [
        ("double_check", "<think>a</think>", "", ("no_think_before_plan",)),
        ("double_check", "<think>s</think>\n", "", ("no_think_before_tool_call",)),
        ("double_check", "<think>r</think>", "", ("no_think_before_reflection",)),
        ("double_check", "<think>c</think>", "", ("no_think_before_double_check",)),
        ("double_check", "<think>d</think>", "", ()),
        ("double_check", "Score: 4", "Score: 2", ("answer_after_low_score",)),
        ("double_check", "Score: 4", "fine", ("no_score",)),
        (
            "double_check",
            "<think>c</think><double_check>Score: 4</double_check>",
            "",
            ("suggested_answer_then_answer",),
        ),
        ("double_check", "<answer>Y</answer>", "", ("no_answer",)),
        (
            "double_check",
            "<answer>Y</answer>",
            "<answer>Y</answer><think>z</think>",
            ("answer_then_thought",),
        ),
        ("double_check", "<think>d</think>", "so<think>d</think>", ("text_outside_tags",)),
        ("double_check", "<think>d", "<plan><think>d", ("unclosed_tag",)),
        ("double_check", "<think>d", "<think><plan>x</plan>d", ("nested_tag",)),
        ("double_check", "<think>d", "<think>", ("empty_body",)),
        (
            "double_check",
            "<think>d</think>",
            "<think>d</think><code>x</code>",
            ("unknown_tool", "code_fence"),
        ),
        ("six_functions", "<think>s</think><answer>", "<answer>", ("no_think_before_answer",)),
        (
            "six_functions",
            "<reflection>good</reflection>",
            "<suggested_answer>Y</suggested_answer>",
            ("tool_call_then_suggested_answer", "suggested_answer_then_answer"),
        ),
        ("plan_first", "<plan>p</plan>", "", ("start_then_tool_call",)),
        ("plan_first", "<reflection>good</reflection>", "", ()),
        ("plan_first", "```py\n", "```python\n", ("code_fence",)),
        ("plan_first", "```\n</code>", "```</code>", ("code_fence",)),
        ("plan_first", "```\n</code>", "```\n```sh\n3\n```\n</code>", ()),
        (
            "plan_first",
            "<reflection>good</reflection>",
            "<plan>again</plan>",
            ("tool_call_then_plan", "plan_then_answer"),
        ),
    ],
)
def test_broken_rules_are_named(grammar: str, old: str, new: str, names: tuple[str, ...]) -> None:
    assert broken(grammar, old, new) == names


def test_a_plan_may_follow_a_low_score() -> None:
    again = (
        "<think>d</think><suggested_answer>N</suggested_answer><think>c</think>"
        "<double_check>Score: 1</double_check><think>p</think><plan>new</plan>"
        "<think>s</think><suggested_answer>Y"
    )
    old = "<think>s</think><suggested_answer>Y"
    assert broken("double_check", old, again) == ()
