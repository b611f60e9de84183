"""Config drift: what runs used beside what the paper says, read from the map in docs."""

from typing import Any

import pytest
import yaml

from flows.audit_page.drift import MAP, Setting, Verdict, compare, drift_section, merged, settings
from tests.support.toy import REPO

TEXT = """\
| Paper | Code | Params | Ours | Paper's value | Official script | Why ours |
|---|---|---|---|---|---|---|
| Fewest hops | `afm.filters` | `filter.minimum` | `5` | 5 | no code | [here](x.md) |
| Reward | `afm.rewards` | `agents.<agent>.reward` | `exact_match` | a judge | `judge` | offline |
| Teacher | `afm.teachers` | `agents.<agent>.teacher` | `scripted` | OAgents | - | - |
| Clip | `afm.clip` | `filter.low`, `filter.high` | 0.2, 0.28 | 0.3 | - | - |
| Only words | - | - | - | 7 | - | - |

| Params | Agent | tiny | 7b | Paper | Official script | Why ours |
|---|---|---|---|---|---|---|
| `scales.<scale>.sft.lr` | web | `0.003` | `0.00003` | 3e-5 (7B), 1.4e-5 (32B) | same | - |
| `scales.<scale>.sft.schedule` | all | `linear` | - | cosine | - | - |
| `scales.<scale>.sft.batch` | all | `16` | `32` | 1,024 | - | small |
"""
PARAMS: dict[str, Any] = {
    "filter": {"minimum": 6, "low": 0.2, "high": 0.28},
    "agents": {"web": {"reward": "exact_match", "teacher": "scripted"}},
    "scales": {
        "tiny": {"sft": {"lr": 0.003, "batch": 16, "schedule": "linear", "by_agent": {}}},
        "7b": {"sft": {"lr": 1.0, "batch": 32, "by_agent": {"web": {"lr": 0.00003}}}},
    },
}


def found(cells: list[tuple[str, str]]) -> dict[tuple[str, str], Setting]:
    return {(one.key, one.of): one for one in settings(TEXT, PARAMS, cells)}


@pytest.mark.parametrize(
    ("used", "paper", "scale", "verdict"),
    [
        (5, "5", "tiny", Verdict.SAME),
        (0.1, "10%", "tiny", Verdict.SAME),
        (32768, "32,768", "tiny", Verdict.SAME),
        (1.4e-5, "1.4e-5", "tiny", Verdict.SAME),
        (32, "32 (7B), 64 (32B)", "7b", Verdict.SAME),
        (32, "32 (7B), 64 (32B)", "32b", Verdict.DIFFERS),
        (32, "32 (7B), 64 (32B)", "3b", Verdict.WORDS),
        ("linear", "cosine", "tiny", Verdict.DIFFERS),
        ("cosine", "cosine", "tiny", Verdict.SAME),
        (4, "-", "tiny", Verdict.UNSTATED),
        (4, "8 rollouts per prompt", "tiny", Verdict.WORDS),
        (1, "runs", "tiny", Verdict.WORDS),
        (True, "1", "tiny", Verdict.WORDS),
        (["code"], "code", "tiny", Verdict.WORDS),
    ],
)
def test_a_value_is_compared_where_both_are_plain(
    used: Any, paper: str, scale: str, verdict: Verdict
) -> None:
    assert compare(used, paper, scale) is verdict


def test_a_setting_is_told_with_what_it_was_changed_from() -> None:
    one = found([("web", "tiny")])["filter.minimum", ""]
    assert (one.used, one.changed_from, one.verdict) == ("6", "5", Verdict.DIFFERS)
    assert one.why == "here"
    (table, *_) = drift_section(TEXT, PARAMS, [("web", "tiny")]).tables
    assert table.rows[0][:4] == ("filter.minimum", "all", "6 (changed from 5)", "5")


def test_settings_are_taken_per_agent_and_scale() -> None:
    by_key = found([("web", "tiny"), ("web", "7b")])
    assert by_key["scales.<scale>.sft.lr", "web, 7b"].verdict is Verdict.SAME
    assert by_key["scales.<scale>.sft.lr", "web, tiny"].verdict is Verdict.WORDS
    assert by_key["scales.<scale>.sft.batch", "web, 7b"].verdict is Verdict.DIFFERS
    assert by_key["agents.<agent>.reward", "web"].script == "judge"
    assert all(
        one.changed_from is None for key, one in by_key.items() if key[0] != "filter.minimum"
    )


def test_what_no_run_used_is_left_out() -> None:
    by_key = found([("code", "32b")])
    assert set(by_key) == {("filter.minimum", ""), ("filter.low", ""), ("filter.high", "")}


def test_another_word_for_a_thing_is_left_to_the_reader_but_not_another_choice() -> None:
    by_key = found([("web", "tiny")])
    assert by_key["agents.<agent>.teacher", "web"].verdict is Verdict.WORDS
    assert by_key["scales.<scale>.sft.schedule", "web, tiny"].verdict is Verdict.DIFFERS


def test_several_settings_in_one_row_are_left_to_the_reader() -> None:
    by_key = found([("web", "tiny")])
    assert by_key["filter.low", ""].verdict is by_key["filter.high", ""].verdict is Verdict.WORDS


def test_the_last_run_to_use_a_setting_counts() -> None:
    assert merged([{"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"d": 4}]) == {
        "a": {"b": 3, "c": 2},
        "d": 4,
    }


def test_what_this_project_ships_is_nowhere_changed() -> None:
    params = yaml.safe_load((REPO / "params.yaml").read_text())
    cells = [
        (agent, scale) for agent in ("mhqa", "web", "code") for scale in ("tiny", "3b", "7b", "32b")
    ]
    shipped = settings((REPO / MAP).read_text(), params, cells)
    assert [one for one in shipped if one.changed_from is not None] == []
    for verdict in Verdict:
        assert sum(one.verdict is verdict for one in shipped) > 10
