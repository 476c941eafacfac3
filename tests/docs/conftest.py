"""The programs behind the site are no package: they are found here as mkdocs finds them."""

from __future__ import annotations

import sys
from pathlib import Path

TOOLS = str(Path(__file__).resolve().parents[2] / "docs" / "tools")
if TOOLS not in sys.path:
    sys.path.insert(0, TOOLS)
