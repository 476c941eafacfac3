"""An extension for griffe: the docstrings as the site's Markdown has to have them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parent))  # griffe loads this file by its path alone

from site_docstrings_text import with_examples


class Docstrings(griffe.Extension):
    """Examples become code, wherever in a docstring they are."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_examples(obj.docstring.value)
