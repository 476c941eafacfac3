"""The site without building it: links and headings, navigation, commands, the reference, and nothing from elsewhere."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import site_links
import site_reference
import typer
import yaml
from site_docstrings_text import with_examples

from laplacian_metric.cli import app
from tests.pages import code_blocks


def pages(root: Path) -> list[str]:
    """The pages whose links are checked, by their paths in the repository."""
    inside = [path.relative_to(root).as_posix() for path in sorted((root / "docs").rglob("*.md"))]
    return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *inside]


def site_settings(root: Path) -> dict[str, Any]:
    settings = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    assert isinstance(settings, dict)
    return settings


# --- links ---


def test_every_page_of_the_site_has_a_title(root: Path) -> None:
    linked = [root / path for path in site_links.linked_files(root) if path.endswith(".md")]
    assert [path.name for path in linked if not path.read_text(encoding="utf-8").startswith("# ")] == []


def test_every_link_leads_to_a_file_and_a_heading(root: Path) -> None:
    assert [problem for page in pages(root) for problem in site_links.problems(root, page)] == []


def test_pages_that_the_site_takes_along_have_no_dead_links(root: Path) -> None:
    along = [path for path in site_links.linked_files(root) if path.endswith(".md")]
    assert "figures/README.md" in along
    assert [problem for page in along for problem in site_links.problems(root, page)] == []


def test_every_page_of_the_figures_is_listed(root: Path) -> None:
    folder = root / "figures"
    listed = {link.path for link in site_links.links((folder / "README.md").read_text(encoding="utf-8"))}
    present = [path for path in [*folder.glob("*.md"), *folder.glob("tables/*.md")] if path.stem != "README"]
    assert [path.name for path in present if path.relative_to(folder).as_posix() not in listed] == []


def test_no_link_is_broken_over_two_lines(root: Path) -> None:
    """Links are read and moved line by line: one that goes over two lines would be dead on the site."""
    broken = re.compile(r"\[[^\[\]`]*\n[^\[\]`]*\]\([^()\s]+\)")
    for page in [*pages(root), *(path for path in site_links.linked_files(root) if path.endswith(".md"))]:
        text = "\n".join(line for _, line in site_links.prose((root / page).read_text(encoding="utf-8")))
        assert broken.findall(text) == [], page


def test_every_table_has_its_own_lines(root: Path) -> None:
    for page in pages(root):
        lines = [line for _, line in site_links.prose((root / page).read_text(encoding="utf-8"))]
        joined = [line for line in lines if "|---" in line and not re.fullmatch(r"(\|[-:]+)+\|", line)]
        assert joined == [], page


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(
        "# A\n[b](b.md) [c](b.md#there) [d](b.md#gone) [e](#a) [f](#z)\n"
        "![picture](p.png) [out](../../x.md) [host](https://x.org/y)\n```\n[code](none.md)\n```\n"
    )
    (tmp_path / "docs" / "b.md").write_text("# B\n## There\n")
    assert site_links.problems(tmp_path, "docs/a.md") == [
        "docs/a.md:2: docs/b.md has no heading 'gone'",
        "docs/a.md:2: docs/a.md has no heading 'z'",
        "docs/a.md:3: there is no docs/p.png",
        "docs/a.md:3: there is no ../x.md",
    ]


def test_headings_are_named_as_repository_hosts_name_them() -> None:
    text = (
        "# The sign, of `x_i` (N^2)\n## Again\n```\n# no heading\n```\n## Again\n## [A link](b.md) here ##\n"
    )
    assert site_links.headings(text) == ["the-sign-of-x_i-n2", "again", "again-1", "a-link-here"]


@pytest.mark.parametrize(
    ("page", "target", "moved"),
    [
        ("docs/trust.md", "../figures/README.md", "figures/README.md"),
        ("docs/tutorials/x.md", "../../CONTRIBUTING.md#test", "../CONTRIBUTING.md#test"),
        ("docs/tutorials/x.md", "../online.md#several-processes", "../online.md#several-processes"),
        ("docs/faq.md", "../examples", "examples/index.md"),
        ("docs/faq.md", "../README.md", "index.md"),
        ("CONTRIBUTING.md", "docs/mathematics.md", "mathematics.md"),
        ("figures/README.md", "../docs/pictures/a.png", "../pictures/a.png"),
        ("docs/a.md", "#here", "#here"),
        ("docs/a.md", "https://x.org/../y", "https://x.org/../y"),
    ],
)
def test_links_are_moved_to_where_their_targets_are_on_the_site(page: str, target: str, moved: str) -> None:
    text = f"Before ([it]({target})).\n\n```\n[it]({target})\n```\n"
    expected = f"Before ([it]({moved})).\n\n```\n[it]({target})\n```\n"
    assert site_links.rewrite(page, text, lambda path: path == "examples") == expected


# --- navigation ---


def navigated(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for one in entry.values() if isinstance(entry, dict) else entry:
            yield from navigated(one)


def test_every_page_is_in_the_navigation_once(root: Path) -> None:
    listed = sorted(navigated(site_settings(root)["nav"]))
    written = [page.removeprefix("docs/") for page in pages(root) if page.startswith("docs/")]
    assert listed == sorted(["index.md", *written])  # the first one is README.md


def test_every_picture_is_shown(root: Path) -> None:
    texts = [(page, (root / page).read_text(encoding="utf-8")) for page in pages(root)]
    shown = {site_links.resolve(page, link.path) for page, text in texts for link in site_links.links(text)}
    present = {path.relative_to(root).as_posix() for path in (root / "docs" / "pictures").iterdir()}
    assert present
    assert present <= shown


def test_the_site_takes_nothing_from_elsewhere(root: Path) -> None:
    settings = site_settings(root)
    assert settings["theme"]["font"] is False
    assert not {"repo_url", "extra_javascript", "extra_css"} & set(
        settings
    )  # a repository's counts are fetched
    assert settings["strict"] is True
    for page in pages(root):
        text = (root / page).read_text(encoding="utf-8")
        assert not re.search(r"!\[[^\]]*\]\(https?:", text), f"{page} shows a picture from elsewhere"


def test_what_a_browser_would_fetch_is_found() -> None:
    pytest.importorskip("mkdocs", reason="the site's hooks need mkdocs")
    hooks = importlib.import_module("site_hooks")
    assert hooks.fetched('<script src="https://x.org/a.js"></script>', ".html")
    assert hooks.fetched('<link rel="stylesheet" href="//x.org/a.css">', ".html")
    assert hooks.fetched("@import url(https://x.org/a.css);", ".css")
    assert not hooks.fetched(
        '<a href="https://x.org">x</a><img src="a.png"><link rel="canonical" href="https://x.org">', ".html"
    )


# --- commands ---


def commands(page: Path) -> list[str]:
    """The commands of a page, whole as in a shell."""
    lines = [line.strip() for block in code_blocks(page, "sh") for line in block.splitlines()]
    listed = [part.strip().removeprefix(".venv/bin/") for line in lines for part in line.split("&&")]
    return [part for part in listed if re.match(r"lam\b", part)]


def mentions(text: str) -> list[str]:
    """The commands that tables and sentences speak of, which may lack what they need."""
    return [span for _, line in site_links.prose(text) for span in re.findall(r"`(lam [^`]+)`", line)]


def parse(command: str, *, whole: bool = True) -> None:
    """Parse a command without running it; if it is not whole, its name and options have to be there all the same."""
    words = shlex.split(re.sub(r"--config \S+", "", command), comments=True)[1:]  # the file would be read
    group: Any = typer.main.get_command(app)
    context = click.Context(group, info_name="lam")
    while hasattr(group, "commands"):
        while words and words[0].startswith("-"):
            assert words[0] in options(group), f"there is no option {words[0]}"
            takes_value = not all(flag.is_flag for flag in group.params if words[0] in flag.opts)
            words = words[1 + takes_value :]
        if not words or (not whole and words[0].isupper()):  # COMMAND stands for any
            return
        name, *words = words
        child = group.get_command(context, name)
        assert child is not None, f"there is no command {name!r}"
        group, context = child, click.Context(child, info_name=name, parent=context)
    if whole:
        group.make_context(context.info_name, words, parent=context.parent)
    else:
        unknown = [word for word in words if word.startswith("-") and word not in options(group)]
        assert not unknown, f"there is no option {unknown[0]}"


def options(command: Any) -> set[str]:
    parameters = [*command.params, command.get_help_option(click.Context(command))]
    return {flag for parameter in parameters for flag in [*parameter.opts, *parameter.secondary_opts]}


def test_every_command_parses(root: Path) -> None:
    problems = []
    for page in pages(root):
        spoken_of = mentions((root / page).read_text(encoding="utf-8"))
        shown = [(command, True) for command in commands(root / page)]
        for command, whole in [*shown, *((mention, False) for mention in spoken_of)]:
            try:
                parse(command, whole=whole)
            except Exception as error:
                problems.append(f"{page}: {command}: {type(error).__name__}: {error}")
    assert problems == []


@pytest.mark.parametrize("command", ["lam fly", "lam fit --weigths a --out b", "lam index model"])
def test_a_command_that_does_not_parse_is_found(command: str) -> None:
    with pytest.raises(Exception, match=r"no command|No such option|Missing"):
        parse(command)


def test_a_mention_of_what_is_not_there_is_found() -> None:
    parse("lam fit --rank", whole=False)
    with pytest.raises(AssertionError, match="no option --ranks"):
        parse("lam fit --ranks", whole=False)


# --- the reference ---


def reference_names(root: Path) -> dict[str, list[str]]:
    """The directives of every page of the reference."""
    texts = site_reference.reference(root)
    return {uri: re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE) for uri, text in texts.items()}


def test_every_public_name_of_every_package_is_on_a_page(root: Path) -> None:
    shown = {name for names in reference_names(root).values() for name in names}
    objects = {id(resolved(name)) for name in shown}
    missing = []
    for top in site_reference.PACKAGES:
        for init in sorted((root / top).rglob("__init__.py")):
            package = ".".join(init.parent.relative_to(root).parts)
            if package.startswith(site_reference.WITHOUT):
                continue
            module = importlib.import_module(package)
            missing += [
                f"{package}.{name}"
                for name in getattr(module, "__all__", ())
                if f"{package}.{name}" not in shown and id(getattr(module, name)) not in objects
            ]
    assert missing == []


def resolved(path: str) -> Any:
    """The object of a dotted path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        home, _, name = path.rpartition(".")
        return getattr(importlib.import_module(home), name)


def imported_by_pages(root: Path) -> set[tuple[str, str]]:
    """What the code on the pages and in the examples imports of ours."""
    codes = [block for page in pages(root) for block in code_blocks(root / page)]
    codes += [path.read_text(encoding="utf-8") for path in sorted((root / "examples").glob("*.py"))]
    nodes = [node for code in codes for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if (node.module or "").split(".")[0] in site_reference.PACKAGES]
    return {(str(node.module), alias.name) for node in ours for alias in node.names}


def test_whatever_a_page_imports_is_in_the_reference(root: Path) -> None:
    names = reference_names(root)
    shown = {name for page_names in names.values() for name in page_names}
    objects = {id(resolved(name)) for name in shown}
    missing = [
        f"{module}.{name}"
        for module, name in sorted(imported_by_pages(root))
        if f"{module}.{name}" not in shown and id(resolved(f"{module}.{name}")) not in objects
    ]
    assert missing == []


def test_the_reference_knows_what_docstrings_are_for(tmp_path: Path) -> None:
    package = tmp_path / "hessians"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from hessians.a import Listed\nfrom hessians.deep.b import Other\n__all__ = ['Listed', 'Other']\n"
    )
    (package / "a.py").write_text(
        "class Listed: ...\n"
        'def shown():\n    """It.\n\n    Example:\n        >>> 1\n        1\n    """\n'
        'def inner():\n    """For this file."""\n'
        'def _hidden():\n    """Args: none."""\n'
    )
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "b.py").write_text('class Other:\n    """Attributes:\n        x: one.\n    """\n')
    (tmp_path / "laplacian_metric").mkdir()
    reference_pages = site_reference.reference(tmp_path)
    assert reference_names(tmp_path)["reference/hessians.md"] == [
        "hessians",
        "hessians.Listed",
        "hessians.a.shown",
    ]
    assert (
        "[hessians.deep.b.Other](hessians.deep.md#hessians.deep.b.Other)"
        in reference_pages["reference/hessians.md"]
    )
    assert set(reference_pages) == {
        "reference/index.md",
        "reference/hessians.md",
        "reference/hessians.deep.md",
    }


def test_examples_in_docstrings_become_code() -> None:
    assert with_examples("Sum.\n\nExample:\n    >>> 1\n    1") == "Sum.\n\nExamples:\n    >>> 1\n    1"
    assert with_examples("So:\n>>> 1\n1\n\nMore.") == "So:\n\n```pycon\n>>> 1\n1\n```\n\nMore."
    assert with_examples("So:\n    >>> 1\n    1") == "So:\n\n    ```pycon\n    >>> 1\n    1\n    ```"
