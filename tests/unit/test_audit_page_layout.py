"""The drawing of any graph: boxes apart, lines to the right, everything inside, the same graph the same drawing."""

import re
import subprocess
import sys
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from flows.audit_page.layout import GAP_X, HEIGHT, WIDTH, Layout, lay_out
from tests.support.toy import REPO

Pairs = list[tuple[str, str]]
NUMBER = re.compile(r"-?\d+\.\d+")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], Pairs]:
    """Any graph without a cycle, connected or not; nodes in any order."""
    size = draw(st.integers(1, 9))
    keys = [f"n{number}" for number in range(size)]
    pairs = draw(
        st.lists(st.sampled_from([*combinations(keys, 2), ("", "")]), unique=True, max_size=20)
    )
    return draw(st.permutations(keys)), [pair for pair in pairs if pair != ("", "")]


def ends(path: str) -> tuple[float, float, float, float]:
    """Where a line begins and ends."""
    first, second, *_ = map(float, NUMBER.findall(path))
    *_, x, y = map(float, NUMBER.findall(path))
    return first, second, x, y


@given(graph=graphs())
@settings(max_examples=60, deadline=None)
def test_boxes_lie_apart_and_inside_and_lines_lead_to_the_right(
    graph: tuple[list[str], Pairs],
) -> None:
    keys, pairs = graph
    found = lay_out(keys, pairs)
    assert found.corners.keys() == set(keys)
    assert found.paths.keys() == set(pairs)
    for x, y in found.corners.values():
        assert 0 <= x <= found.width - WIDTH
        assert 0 <= y <= found.height - HEIGHT
    for (ax, ay), (bx, by) in combinations(found.corners.values(), 2):
        assert abs(ax - bx) >= WIDTH or abs(ay - by) >= HEIGHT
    for (source, target), path in found.paths.items():
        (sx, sy), (tx, ty) = found.corners[source], found.corners[target]
        assert tx - sx >= WIDTH + GAP_X - 1
        wanted = (sx + WIDTH, sy + HEIGHT / 2, tx, ty + HEIGHT / 2)
        assert all(abs(a - b) < 0.2 for a, b in zip(ends(path), wanted, strict=True))


def small() -> Layout:
    return lay_out(["a", "b", "c", "d"], [("a", "b"), ("a", "c"), ("b", "d"), ("a", "d")])


def test_a_line_past_a_layer_keeps_out_of_its_boxes() -> None:
    found = small()
    heights = [
        float(y) for _, y in re.findall(r"(-?\d+\.\d) (-?\d+\.\d) ?H", found.paths["a", "d"])
    ]
    assert heights
    middle = [found.corners[key][1] for key in ("b", "c")]
    assert all(not top < heights[0] < top + HEIGHT for top in middle)


def test_a_cycle_is_drawn_too() -> None:
    found = lay_out(["a", "b"], [("a", "b"), ("b", "a")])
    assert found.paths.keys() == {("a", "b"), ("b", "a")}


def test_another_process_draws_the_same() -> None:
    program = "from tests.unit.test_audit_page_layout import small; print(small())"
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, cwd=REPO, env={"PYTHONHASHSEED": "11"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(small()), done.stderr
