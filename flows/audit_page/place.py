"""Where the audit page lies, and which run it ends with: asked by others without loading what makes the page."""

import re
from pathlib import Path

PAGE = "data/report/audit.html"
"""In a checkout, beside the page of stage `report`; no output of a stage, so DVC leaves it alone."""
NEWEST = "afm-newest-run"
"""Name of the page's meta element that holds the identity of the newest run it shows."""
HEAD = 4096
"""Characters within which it stands."""
_META = re.compile(f'<meta name="{NEWEST}" content="([0-9a-z-]*)">')


def newest_run(page: Path) -> str | None:
    """Return the identity of the newest run that a page shows; None where there is no page or it shows no record."""
    if not page.exists():
        return None
    with page.open(encoding="utf-8") as stream:
        found = _META.search(stream.read(HEAD))
    return found[1] or None if found else None
