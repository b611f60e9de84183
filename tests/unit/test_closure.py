"""The import closure: everything a stage can run, and nothing else."""

import hashlib
from pathlib import Path

import pytest

from afm.errors import UserError
from flows.memory import Memory
from stages._closure import closure, code_hashes, stale_blocks, write

FILES = {
    "afm/__init__.py": "",
    "afm/a.py": "def f():\n    from afm.sub import inner\n",
    "afm/sub/__init__.py": "from . import sibling\n",
    "afm/sub/inner.py": "import json\nimport afm.other as o\n",
    "afm/sub/sibling.py": "from ..level import x\n",
    "afm/level.py": "x = 1\n",
    "afm/other.py": "PAGE = 'page.html'\nNAMES = {'k': 'afm.named:Thing'}\n",
    "afm/page.html": "<p>",
    "afm/named.py": "",
    "afm/typing_only.py": "",
    "afm/unused.py": "",
    "stages/__init__.py": "",
    "stages/_stage.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import afm.typing_only\nelse:\n    import afm.level\n"
    ),
    "stages/x.py": "from stages._stage import Stage\nfrom afm.a import f\nimport numpy\n",
}
DVC = """\
# kept
stages:
  x:
    cmd: >-
      bin/submit x
      --out-a b
    deps:
      - stages/x.py
      - afm/gone.py
      - data/in   # data stays
    outs:
      - b

  later:
    cmd: bin/submit missing_module
    deps:
      - stages/missing_module.py
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "dvc.yaml").write_text(DVC)
    return tmp_path


def test_closure_follows_every_way_to_load_code(root: Path) -> None:
    expected = set(FILES) - {"afm/typing_only.py", "afm/unused.py"}
    assert set(closure(root, "stages.x")) == expected


def test_an_import_cycle_ends(root: Path) -> None:
    (root / "afm/level.py").write_text("import afm.a\n")
    assert "afm/level.py" in closure(root, "stages.x")


def test_what_files_mention_is_remembered_by_their_content(root: Path) -> None:
    known = Memory(root / "mentions.json")
    before = code_hashes(root, "stages.x", known)
    known.save()
    known = Memory(root / "mentions.json")
    count = len(known)
    assert code_hashes(root, "stages.x", known) == before
    assert len(known) == count > 5
    (root / "afm/other.py").write_text("import afm.unused\n")
    after = code_hashes(root, "stages.x", known)
    assert after.keys() - before.keys() == {"afm/unused.py"}
    assert before.keys() - after.keys() == {"afm/page.html", "afm/named.py"}
    assert after["afm/other.py"] == hashlib.md5(b"import afm.unused\n").hexdigest()


def test_equal_files_of_two_packages_import_their_own_siblings(root: Path) -> None:
    (root / "afm/sub/__init__.py").write_text("")
    for folder in ("afm/sub", "afm"):
        (root / folder / "twin.py").write_text("from . import level\n")
    (root / "afm/sub/level.py").write_text("")
    (root / "stages/x.py").write_text("import afm.twin, afm.sub.twin\n")
    assert {"afm/level.py", "afm/sub/level.py"} <= code_hashes(root, "stages.x", {}).keys()


def test_what_is_not_there_or_not_python_is_named(root: Path) -> None:
    with pytest.raises(UserError, match=r"no module stages\.y"):
        closure(root, "stages.y")
    (root / "afm/level.py").write_text("x = = 1\n")
    with pytest.raises(UserError, match=r"level\.py:1: not Python"):
        closure(root, "stages.x")


def test_write_replaces_code_and_keeps_all_else(root: Path) -> None:
    assert write(root) == ["x"]
    text = (root / "dvc.yaml").read_text()
    assert text.startswith("# kept\n")
    assert "afm/gone.py" not in text
    assert text.index("stages/x.py") < text.index("data/in") < text.index("outs:")
    assert text.endswith(DVC[DVC.index("    outs:") :])
    assert stale_blocks(root) == {}
    assert write(root) == []
    assert (root / "dvc.yaml").read_text() == text
