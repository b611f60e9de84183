"""The `afm` command: fast help, one message per mistake, params edited without loss."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from afm.errors import UserError
from afm.params.root import read_params
from flows.cli import COMMANDS, main
from flows.commands.accept import meaning
from flows.commands.params import set_params
from flows.commands.why import explain
from tests.support.toy import REPO


def run(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(str(ended.value.code))


@pytest.fixture
def params(tmp_path: Path) -> Path:
    return Path(shutil.copy(REPO / "params.yaml", tmp_path))


def test_help_is_fast_and_loads_no_subcommand() -> None:
    probe = (
        "import sys, time\n"
        "from flows.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    loaded = [n for n in sys.modules if n.startswith('flows.commands') or n in ('pydantic', 'yaml')]\n"
        "    print(time.process_time(), loaded)\n"
    )
    times = []
    for _ in range(3):
        output = subprocess.run(
            [sys.executable, "-c", probe], cwd=REPO, capture_output=True, text=True, check=True
        ).stdout
        seconds, loaded = output.splitlines()[-1].split(" ", 1)
        assert loaded == "[]"
        times.append(float(seconds))
    assert min(times) < 0.3, "CPU seconds"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_subcommand_exists_and_has_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name]
    module = importlib.import_module(command.module)
    assert callable(getattr(module, command.function))
    assert run([name, "--help"]) == 0
    assert command.help in capsys.readouterr().out


def test_outside_a_checkout_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["status"]) == 2
    assert "is not in a checkout: no dvc.yaml" in capsys.readouterr().err


def test_an_unknown_subcommand_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nosuch"]) == 2
    assert "'status'" in capsys.readouterr().err


def test_params_set_changes_the_values_and_keeps_every_comment(params: Path) -> None:
    before = params.read_text()
    set_params(params, ["select.num_queries=7", "run.scales=[tiny, smoke]"])
    changed = read_params(params)
    assert changed.select.num_queries == 7
    assert changed.run.scales == ("tiny", "smoke")
    after = params.read_text()
    comments = [line.partition("#")[2] for line in before.splitlines() if "#" in line]
    assert comments == [line.partition("#")[2] for line in after.splitlines() if "#" in line]
    different = [
        (old, new)
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old.split() != new.split()
    ]
    assert len(different) == 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "select.num_query=7",
            r"no key 'select\.num_query': 'num_query' is not among .*num_queries",
        ),
        ("select.num_queries", "is not KEY=VALUE"),
        ("select.num_queries=many", r"select\.num_queries: .*got 'many'"),
        ("run.scales=[huge]", "unknown scale 'huge'"),
    ],
)
def test_a_bad_setting_changes_nothing(params: Path, setting: str, message: str) -> None:
    before = params.read_bytes()
    with pytest.raises(UserError, match=message):
        set_params(params, ["select.seed=1", setting])
    assert params.read_bytes() == before
    assert [path.name for path in params.parent.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x = 1", "x = 1  # why", True),
        ("def f():\n    '''A.'''\n    return 1", "def f():\n    '''B.'''\n\n    return (1)", True),
        ("class A:\n    x: int = 1\n    '''unit'''", "class A:\n    x: int = 1", True),
        ("x = 1", "x = 2", False),
        ("x = 'a'", "x = 'b'", False),
        ("def f(a=1): pass", "def f(a=2): pass", False),
        ("x = -1", "x = - 1", True),
    ],
)
def test_meaning_is_what_runs(old: str, new: str, same: bool) -> None:
    assert (meaning(old.encode()) == meaning(new.encode())) is same


def test_why_shows_the_leaf_that_differs(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: {b: {c: 2, d: 3}}\n")
    (tmp_path / "dvc.lock").write_text(
        "stages:\n  x@m:\n    cmd: c\n    params:\n      params.yaml:\n        a: {b: {c: 1, d: 3}}\n"
    )
    changes = {
        "x@m": [
            {"changed deps": {"params.yaml": {"a": "modified"}, "f.py": "deleted"}},
            {"changed outs": {"o": "modified"}},
            "changed command",
        ],
        "new@m": [{"changed deps": {}}],
    }
    assert list(explain(tmp_path, changes)) == [
        "x@m",
        "  changed command",
        "  param a.b.c: 1 -> 2",
        "  f.py deleted",
        "  output o modified",
        "new@m has not run yet",
    ]


@pytest.mark.parametrize("name", ["7b-long", "sft", "mhqa", "7B"])
def test_a_scale_that_would_confuse_cells_is_refused(params: Path, name: str) -> None:
    tree = yaml.safe_load(params.read_text())
    tree["scales"][name] = tree["scales"]["tiny"]
    params.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match="cannot be part of a cell's name"):
        read_params(params)
