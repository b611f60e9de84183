"""The audit page: which runs it shows, what it tells of them, and what it says where something is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jinja2 import Environment

from afm.errors import UserError
from flows.audit.index import ask
from flows.audit_page.chain import Edge, key_of, read_chain
from flows.audit_page.facts import MAIN, Node
from flows.audit_page.page import AuditPage, read_page, render, write_page
from flows.audit_page.place import PAGE, newest_run
from flows.audit_page.tables import COUNTED
from tests.support.audit import Pipeline, Sizes
from tests.support.audit_page import EVIL, add_report, copy_of, world_with_report
from tests.support.audit_world import World, place
from tests.support.toy import REPO


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Pipeline]:
    return world_with_report(tmp_path_factory.mktemp("page") / "checkout")


@pytest.fixture
def own(made: tuple[World, Pipeline], page: AuditPage, tmp_path: Path) -> tuple[World, Pipeline]:
    """The same checkout with its index, to be changed."""
    return copy_of(made, tmp_path)


@pytest.fixture(scope="module")
def page(made: tuple[World, Pipeline]) -> AuditPage:
    return ask(place(made[0]), read_page)


@pytest.fixture(scope="module")
def html(page: AuditPage) -> str:
    return render(page)


def by_title(page: AuditPage) -> dict[str, Node]:
    return {node.title: node for node in page.nodes}


def edges(page: AuditPage) -> dict[tuple[str, str], Edge]:
    titles = {node.key: node.title for node in page.nodes}
    return {(titles[edge.source], titles[edge.target]): edge for edge in page.chain.edges}


def test_every_run_behind_what_dvc_lock_holds_is_shown_once(page: AuditPage) -> None:
    cells = [run.cell for run in page.chain.runs]
    assert sorted(cells) == sorted(set(cells))
    assert len(cells) == 12
    assert page.chain.older == frozenset()
    assert page.missing == ()


def test_edges_name_what_was_read(page: AuditPage) -> None:
    found = edges(page)
    assert found["filter@mhqa", "sft@mhqa-tiny"].paths == ("data/filter/mhqa/accepted.jsonl",)
    assert found["models/shipped", "base@mhqa-tiny"].paths == ("models/shipped",)
    assert ("prepare@mhqa", "sft@mhqa-tiny") not in found


def test_a_folder_leads_to_all_who_wrote_into_it(page: AuditPage) -> None:
    read = {source: edge for (source, target), edge in edges(page).items() if target == "report"}
    assert set(read) == {"filter@mhqa", "score@mhqa-tiny"}
    assert all(edge.is_proven for edge in read.values())


def test_a_folder_that_holds_something_else_by_now_is_marked(own: tuple[World, Pipeline]) -> None:
    world, pipeline = own
    pipeline.filter(1)
    world.save("another filter, no new report")
    page = ask(place(world), read_page)
    found = edges(page)
    assert not found["filter@mhqa", "report"].is_proven
    assert found["score@mhqa-tiny", "report"].is_proven
    reads = {held.path: held.told for held in by_title(page)["report"].reads}
    assert "something else" in reads["data/filter"]
    assert "something else" not in reads["data/score"]
    assert 'class="edge unproven"' in render(page)


def test_an_older_run_on_which_something_rests_is_shown_as_older(
    own: tuple[World, Pipeline],
) -> None:
    world, pipeline = own
    before = world.lock["filter@mhqa"]
    pipeline.filter(1)
    assert world.lock["filter@mhqa"] != before
    world.save("the model rests on the filter of before")
    page = ask(place(world), read_page)
    filters = {key_of(run) for run in page.chain.runs if run.cell == "filter@mhqa"}
    assert len(filters) == 2
    (older,) = page.chain.older
    assert older in filters
    labels = [node.label for node in page.nodes if node.key == older]
    assert labels == ["filter@mhqa, 30.0 s, an older run than the one in dvc.lock"]


def test_a_node_tells_all_that_the_record_says(page: AuditPage) -> None:
    node = by_title(page)["score@mhqa-tiny"]
    told = dict(node.facts)
    assert told["identity"] == node.key.removeprefix("run-")
    assert told["tree"].startswith("dirty")
    assert (told["executor"], told["Job"]) == ("kubernetes", "afm-score-1")
    assert told["images"].endswith("0" * 64)
    assert (told["seconds"], told["GPU seconds"]) == ("30.0", "60")
    assert told["tokens"] == "1,200 prompt, 340 completion"
    assert told["cost"] == "1.25 currency units"
    assert told["endpoints"].startswith(EVIL)
    assert len(told["constraints, md5"]) == 32
    assert len(told["git commit"]) == 40
    assert ("eval/mhqa/rl/avg_at_k", "0.700") in node.metrics
    assert ("eval/mhqa/base/avg_at_k", "-") in node.metrics
    assert ("eval/mhqa/rl/failed_share", "0.010") in node.more_metrics
    assert dict(by_title(page)["rollout@mhqa"].facts)["teacher"] == "scripted (scripted)"


def test_reads_and_writes_carry_their_hash_and_rows(
    made: tuple[World, Pipeline], page: AuditPage
) -> None:
    world, _ = made
    node = by_title(page)["filter@mhqa"]
    wrote = {held.path: held for held in node.wrote}
    book = wrote["data/filter/mhqa/ledger.jsonl"]
    assert book.md5 == world.places[book.path]
    assert book.told == "24 of 40 kept; dropped: 8 no_reflection, 8 wrong_answer"
    sources = {held.path: [title for _, title in held.sources] for held in node.reads}
    assert sources["data/rollout/mhqa/trajectories.jsonl"] == ["rollout@mhqa"]


def test_tables_look_at_all_runs(page: AuditPage) -> None:
    tables = {t.caption: t for s in (*page.results, *page.accounts) for t in s.tables}
    (row,) = tables["avg@k with its 95% interval"].rows
    assert row[:4] == ("mhqa-tiny", "mhqa", "-", "0.500 [0.450, 0.550]")
    costs = {row[0]: row[1:] for row in tables["What each run took"].rows}
    assert costs["score@mhqa-tiny"] == ("30.0", "60", "1,200", "340", "1.25")
    assert costs["total"] == ("360.0", "60", "1,214", "350", "1.25")
    assert ("rollout@mhqa", "failed", "1", "41", "0.024") in tables[
        "While data were made and models trained"
    ].rows
    shares = {row[0]: row[2:4] for row in tables["Shares of the rollouts on held-out queries"].rows}
    assert shares["mhqa-tiny rl"] == ("0.010", "0.002")
    names = [row[:2] for row in tables["Registered names, as afm audit takes them"].rows]
    assert names == [("afm-mhqa-tiny@1", "sft"), ("afm-mhqa-tiny@2", "rl, champion")]


def test_metrics_that_the_page_looks_for_are_those_that_stages_write() -> None:
    parts = [p.read_text() for name in ("afm", "stages") for p in (REPO / name).rglob("*.py")]
    sources = "".join(parts)
    wanted = {*MAIN, *(key for row in COUNTED for key in row[2:])}
    made_up = {"filter/dropped/unjudged"}  # a prefix and a reason
    plain = {key for key in wanted if "*" not in key} - made_up
    assert [key for key in plain if f'"{key}"' not in sources] == []


def test_the_page_shows_what_stage_report_measured(page: AuditPage, html: str) -> None:
    assert [section.id for section in page.measured] == [
        "results-mhqa-tiny",
        "training-mhqa-tiny",
        "trajectories-mhqa-tiny",
        "data-mhqa",
    ]
    assert 'class="observation masked"' in html


def test_text_of_servers_models_and_tools_is_escaped(html: str) -> None:
    assert EVIL not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert html.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in html


def test_the_page_refers_to_nothing_outside_itself(html: str) -> None:
    assert 'src="' not in html
    assert "@import" not in html
    assert "default-src 'none'" in html
    assert [line for line in html.splitlines() if "<link" in line] == [
        '<link rel="icon" href="data:,">'
    ]


def test_the_same_checkout_gives_the_same_bytes(made: tuple[World, Pipeline], html: str) -> None:
    program = (
        "import sys; from pathlib import Path; from flows.workspace import Workspace\n"
        "from flows.audit_page.page import write_page\n"
        "root = Path(sys.argv[1]); write_page(Workspace(root=root, home=root), Path(sys.argv[2]))"
    )
    out = made[0].root / "other.html"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    words = [sys.executable, "-c", program, str(made[0].root), str(out)]
    subprocess.run(words, check=True, cwd=REPO, env=environment)
    assert out.read_text() == html


def test_the_page_says_which_run_it_ends_with(made: tuple[World, Pipeline], tmp_path: Path) -> None:
    world, _ = made
    path = tmp_path / "new" / "audit.html"
    assert newest_run(path) is None
    write_page(place(world), path)
    assert newest_run(path) == world.records[-1].identity
    before = path.stat().st_ino
    write_page(place(world), path)
    assert path.stat().st_ino == before, "what is the same already is left alone"
    path.write_text("<!doctype html>")
    assert newest_run(path) is None


def test_without_stage_report_there_is_what_there_is(tmp_path: Path) -> None:
    world = World(root=tmp_path).begin()
    pipeline = Pipeline(world, Sizes())
    pipeline.prepare()
    page = ask(place(world), read_page)
    assert [run.cell for run in page.chain.runs] == ["prepare@mhqa"]
    assert page.measured == ()
    assert any("`afm run report`" in line for line in page.missing)
    assert any("docs/paper-to-code.md" in line for line in page.missing)
    assert "What is missing" in render(page)


def test_sections_that_are_gone_or_of_another_version_are_named(
    own: tuple[World, Pipeline],
) -> None:
    world, _ = own
    md5 = world.places["data/report/sections.json"]
    cached = world.cache / "files" / "md5" / md5[:2] / md5[2:]
    cached.unlink()
    page = ask(place(world), read_page)
    assert page.measured == ()
    assert page.missing == (
        f"data/report/sections.json (md5 {md5}) lies nowhere any more: `dvc pull report`.",
    )
    add_report(world, b'[{"kind": "other"}]')
    world.save("another version")
    (line,) = ask(place(world), read_page).missing
    assert "is of another version" in line


def test_runs_without_a_record_are_shown_and_named(own: tuple[World, Pipeline]) -> None:
    world, _ = own
    for path in (world.root / ".lineage").glob("*.json"):
        if json.loads(path.read_text())["cell"] in ("sft@mhqa-tiny", "score@mhqa-tiny"):
            path.unlink()
    page = ask(place(world), read_page)
    assert page.missing == (
        "No run record tells how these came about, dvc.lock alone does: sft@mhqa-tiny, score@mhqa-tiny.",
    )
    node = by_title(page)["score@mhqa-tiny"]
    assert "dvc.lock alone" in dict(node.facts)["record"]
    assert ("eval/mhqa/rl/avg_at_k", "0.700") in node.metrics


def test_where_nothing_has_run_there_is_one_message(tmp_path: Path) -> None:
    world = World(root=tmp_path).begin()
    with pytest.raises(UserError, match="nothing to report"):
        write_page(place(world), tmp_path / PAGE)
    assert not (tmp_path / PAGE).exists()


def test_the_command_writes_the_page_and_says_where(
    made: tuple[World, Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from flows.cli import main

    monkeypatch.chdir(made[0].root)
    with pytest.raises(SystemExit) as ended:
        main(["report"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{PAGE}: 12 runs, 4 sections of stage report\n"
    assert (made[0].root / PAGE).exists()


def test_the_template_knows_no_undefined_name() -> None:
    from jinja2.meta import find_undeclared_variables

    text = (REPO / "flows" / "audit_page" / "page.html").read_text()
    names = find_undeclared_variables(Environment(autoescape=True).parse(text))
    assert names <= {
        "page",
        "sections",
        "roles",
        "style",
        "script",
        "script_hash",
        "newest_name",
        "groups",
        "box",
    }


def test_an_index_of_records_alone_shows_the_newest_run_of_each_cell(
    own: tuple[World, Pipeline],
) -> None:
    world, pipeline = own
    pipeline.filter(3)
    (world.root / "dvc.lock").unlink()
    chain = ask(place(world), read_chain)
    newest = [
        run for run in chain.runs if run.cell == "filter@mhqa" and key_of(run) not in chain.older
    ]
    assert [run.identity for run in newest] == [world.records[-1].identity]
