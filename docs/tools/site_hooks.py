"""What mkdocs calls while it builds the site: it makes pages, moves links, and looks at what was built."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_links import DOCS, HOME, linked_files, rewrite, slug, title
from site_reference import package_pages, reference

logger = logging.getLogger("mkdocs.hooks.site")
# What a browser fetches without being asked: anything from elsewhere would make the site depend on the network.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*\bhref=[\"']?(?:https?:)?//[^\"'\s>]+",
    re.IGNORECASE,
)
_FETCHED_BY_STYLE = re.compile(
    r"(?:@import\s+(?:url\()?|url\()\s*[\"']?(?:https?:)?//[^\"')\s]+", re.IGNORECASE
)


# Names in tables stay whole, and wide screens show whole lines of code.
_STYLE = "<style>.md-typeset td code,.md-typeset th code{word-break:normal}.md-grid{max-width:76rem}</style>"


class NoHtml(Extension):
    """Markdown without HTML in it: `<a, b>` in a sentence is what it looks like."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that are made into the navigation, and headings' names in the form that links have here."""
    root = _root(config)
    config.markdown_extensions.append(NoHtml())  # type: ignore[arg-type]
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    packages = [{page.package: page.uri} for page in package_pages(root)]
    assert config.nav is not None, "mkdocs.yml has no nav"
    config.nav.append({"Reference": ["reference/index.md", *packages]})
    linked = [path for path in linked_files(root) if path.endswith(".md") or (root / path).is_dir()]
    config.nav.append({"In the repository": [_nav_entry(root, path) for path in linked]})
    return config


def _nav_entry(root: Path, path: str) -> dict[str, str]:
    if (root / path).is_dir():
        return {path: f"{path}/{HOME}"}
    return {title((root / path).read_text(encoding="utf-8")): path}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, which is README.md, the reference, and what pages link to outside of docs/."""
    root = _root(config)
    files.append(File.generated(config, HOME, abs_src_path=str(root / "README.md")))
    for uri, text in reference(root).items():
        files.append(File.generated(config, uri, content=text))
    for path in linked_files(root):
        if (root / path).is_dir():
            files.append(File.generated(config, f"{path}/{HOME}", content=folder_text(root, path)))
        else:
            files.append(File.generated(config, path, abs_src_path=str(root / path)))
    return files


def folder_text(root: Path, path: str) -> str:
    """A page with all programs of a folder."""
    lines = [f"# {path}", ""]
    for program in sorted((root / path).glob("*.py")):
        code = program.read_text(encoding="utf-8")
        lines += [f"## {program.name}", "", ast.get_docstring(ast.parse(code)) or "", ""]
        lines += ["```python", code.rstrip(), "```", ""]
    return "\n".join(lines)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Move the links of a page to where its targets are on the site."""
    root, uri = _root(config), page.file.src_uri
    inside = root / DOCS / uri
    if uri.startswith("reference/"):
        return markdown
    path = f"{DOCS}/{uri}" if inside.is_file() else "README.md" if uri == HOME else uri
    return rewrite(path, markdown, lambda target: (root / target).is_dir())


def on_post_page(output: str, **_: Any) -> str:
    """Add the site's few style rules to a page."""
    return output.replace("</head>", f"{_STYLE}</head>", 1)


def fetched(text: str, suffix: str) -> list[str]:
    """What a browser would fetch from elsewhere for a page or a style sheet."""
    found = _FETCHED_BY_STYLE.findall(text)
    return found + (_FETCHED.findall(text) if suffix == ".html" else [])


def on_post_build(*, config: MkDocsConfig) -> None:
    """Warn, which a strict build takes as an error, of anything that the site would fetch from elsewhere."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css"):
            for one in fetched(path.read_text(encoding="utf-8"), path.suffix):
                logger.warning("%s fetches from elsewhere: %s", path.relative_to(config.site_dir), one)
