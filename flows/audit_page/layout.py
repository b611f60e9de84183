"""Where the nodes of the graph lie: in layers from left to right, by Sugiyama's method (grandalf)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 132.0, 54.0
"""Of a node [px]."""
GAP_X, GAP_Y = 44.0, 14.0
"""Between layers, and between the nodes of a layer [px]."""
LANE = 4.0
"""What an edge takes of a layer that it passes through [px]."""
MARGIN = 10.0
ROUNDS = 8
"""Sweeps that reduce crossings."""

Point = tuple[float, float]
Pair = tuple[str, str]
"""Source and target of an edge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A drawing."""

    width: float
    height: float
    corners: dict[str, Point]
    """Upper left corner by node."""
    paths: dict[Pair, str]
    """Path data of SVG by edge."""


def lay_out(keys: Sequence[str], edges: Iterable[Pair]) -> Layout:
    """Place nodes so that edges lead to the right and seldom cross; parts that hang together lie below each other."""
    corners: dict[str, Point] = {}
    paths: dict[Pair, str] = {}
    width = height = MARGIN
    for part in _parts(keys, edges):
        centres, routes = _place(part)
        lanes = [y for route in routes.values() for _, y in route]
        left = min(x for x, _ in centres.values()) - WIDTH / 2 - MARGIN
        top = min([*(y - HEIGHT / 2 for _, y in centres.values()), *lanes]) - height
        moved = {key: (x - left, y - top) for key, (x, y) in centres.items()}
        corners |= {key: (x - WIDTH / 2, y - HEIGHT / 2) for key, (x, y) in moved.items()}
        for pair, route in routes.items():
            points = [(x - left, y - top) for x, y in route]
            paths[pair] = _path(moved[pair[0]], points, moved[pair[1]])
        width = max(width, *(x + WIDTH / 2 + MARGIN for x, _ in moved.values()))
        bottom = max([*(y + HEIGHT / 2 for _, y in centres.values()), *lanes])
        height = bottom - top + GAP_Y
    return Layout(width=width, height=height - GAP_Y + MARGIN, corners=corners, paths=paths)


def _parts(keys: Sequence[str], edges: Iterable[Pair]) -> list[Any]:
    """Return the connected parts; grandalf draws one at a time, and downwards, so that its sides are turned here."""
    from grandalf.graphs import Edge, Graph, Vertex
    from grandalf.layouts import VertexViewer
    from grandalf.routing import EdgeViewer

    vertex_type, edge_type = _numbered(Vertex), _numbered(Edge)
    vertices = {key: vertex_type(number, key) for number, key in enumerate(keys)}
    for vertex in vertices.values():
        vertex.view = VertexViewer(w=HEIGHT, h=WIDTH)
    drawn = [
        edge_type(number, vertices[source], vertices[target])
        for number, (source, target) in enumerate(edges)
    ]
    for edge in drawn:
        edge.view = EdgeViewer()
    return list(Graph(list(vertices.values()), drawn).C)


def _numbered(kind: Any) -> Any:
    """Give a class of grandalf hashes by number: it walks sets, and the same graph must give the same drawing."""

    class Numbered(kind):  # type: ignore[misc]
        def __init__(self, number: int, *words: Any) -> None:
            self.number = number
            super().__init__(*words)

        def __hash__(self) -> int:
            return self.number

    return Numbered


def _place(part: Any) -> tuple[dict[str, Point], dict[Pair, list[Point]]]:
    """Return the centre of each node, and where each edge passes through layers between its ends."""
    from grandalf.layouts import SugiyamaLayout

    layout = SugiyamaLayout(part)
    layout.xspace, layout.yspace = GAP_Y, GAP_X
    layout.dw, layout.dh = LANE, WIDTH
    layout.init_all(optimize=True)
    layout.draw(ROUNDS)
    centres = {vertex.data: _turned(vertex.view.xy) for vertex in part.sV}
    routes = {
        (edge.v[0].data, edge.v[1].data): [_turned(point) for point in edge.view._pts[1:-1]]
        for edge in part.sE
    }
    return centres, routes


def _turned(point: Point) -> Point:
    return point[1], point[0]


def _path(source: Point, lanes: Sequence[Point], target: Point) -> str:
    """Draw an edge: level through a layer, curved between two."""
    at = (source[0] + WIDTH / 2, source[1])
    words = [f"M{at[0]:.1f} {at[1]:.1f}"]
    for x, y in (*lanes, target):
        words.append(_curve(at, (x - WIDTH / 2, y)))
        at = (x + WIDTH / 2, y)
        words.append(f"H{at[0]:.1f}")
    return " ".join(words[:-1])


def _curve(start: Point, end: Point) -> str:
    middle = (start[0] + end[0]) / 2
    return f"C{middle:.1f} {start[1]:.1f} {middle:.1f} {end[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
