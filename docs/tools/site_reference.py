"""The pages of the reference, made from the packages as they are: no list of names is kept by hand.

A name is public if its package lists it in `__all__`, if its docstring is for those who call it (it has an example, or
says what its arguments or attributes are), or if the code on a page or in an example imports it. Nothing is imported;
the files are read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("hessians", "laplacian_metric")
# What `lam` runs; it has a page of its own.
WITHOUT = ("laplacian_metric.cli", "laplacian_metric.demo")
_PYTHON = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_FOR_CALLERS = (">>>", "Args:", "Attributes:")


@dataclass(frozen=True)
class Public:
    """One public name: where it is defined, and what it is imported from."""

    home: str  # the module that defines it
    name: str
    package: str | None  # the package whose `__all__` has it, where that is the home's own package

    @property
    def path(self) -> str:
        """What it is imported as."""
        return f"{self.package or self.home}.{self.name}"


@dataclass(frozen=True)
class PackagePage:
    """What a package's page has: names of its own, and names that it passes on from other packages."""

    package: str
    own: list[Public]
    passed_on: dict[str, str]  # name -> the module or package that defines it

    @property
    def uri(self) -> str:
        return f"reference/{self.package}.md"


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _listed(tree: ast.Module) -> list[str]:
    """What `__all__` has."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Where the names that a module imports come from, those for type checkers only included."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.asname or alias.name: (str(node.module), alias.name) for node in nodes for alias in node.names
    }


def _for_callers(tree: ast.Module, module: str, shown: set[tuple[str, str]]) -> list[str]:
    """The classes and functions of a module that are for those who call them."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        node.name
        for node in tree.body
        if isinstance(node, kinds)
        and not node.name.startswith("_")
        and (
            (module, node.name) in shown
            or any(mark in (ast.get_docstring(node) or "") for mark in _FOR_CALLERS)
        )
    ]


def _shown(root: Path) -> set[tuple[str, str]]:
    """The modules and names that the code on the pages and in the examples imports."""
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.is_file()]
    codes = [code for text in texts for code in _PYTHON.findall(text)]
    codes += [path.read_text(encoding="utf-8") for path in (root / "examples").glob("*.py")]
    nodes = [node for code in codes for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return {(str(node.module), alias.name) for node in nodes for alias in node.names}


def _passed_on(packages: dict[str, Path]) -> set[tuple[str, str]]:
    """The modules and names that a package lists as its own."""
    trees = [_parsed(folder / "__init__.py") for folder in packages.values()]
    return {_imported(tree)[name] for tree in trees for name in _listed(tree) if name in _imported(tree)}


def _packages(root: Path) -> Iterator[tuple[str, Path]]:
    for top in PACKAGES:
        for init in sorted((root / top).rglob("__init__.py")):
            package = ".".join(init.parent.relative_to(root).parts)
            if not package.startswith(WITHOUT):
                yield package, init.parent


def package_pages(root: Path) -> list[PackagePage]:
    """The page of every package that has public names."""
    packages = dict(_packages(root))
    shown = _shown(root) | _passed_on(packages)
    pages = []
    for package, folder in packages.items():
        tree = _parsed(folder / "__init__.py")
        listed, imported = _listed(tree), _imported(tree)
        own: list[Public] = []
        passed_on: dict[str, str] = {}
        for name in listed:
            home, original = imported.get(name, (package, name))
            if f"{home}.{original}" in packages:
                passed_on[name] = f"{home}.{original}"
            elif home == package or _package_of(home, packages) == package:
                own.append(Public(home, name, package))
            else:
                passed_on[name] = home
        seen = {(public.home, public.name) for public in own}
        for path in sorted(folder.glob("*.py")):
            module = package if path.stem == "__init__" else f"{package}.{path.stem}"
            tree = _parsed(path)
            names = dict.fromkeys(
                [*_for_callers(tree, module, shown), *(_listed(tree) if module != package else [])]
            )
            own += [Public(module, name, None) for name in names if (module, name) not in seen]
        if own or passed_on:
            pages.append(PackagePage(package, own, passed_on))
    return pages


def _package_of(module: str, packages: dict[str, Path]) -> str:
    return module if module in packages else module.rpartition(".")[0]


def page_text(page: PackagePage, pages: list[PackagePage]) -> str:
    """The page as Markdown, with a directive for every name."""
    lines = [f"# {page.package}", "", f"::: {page.package}", *_options(members=False, heading=False)]
    if page.passed_on:
        lines += ["", "| also here | see |", "|---|---|"]
        lines += [f"| `{name}` | {_where(name, home, pages)} |" for name, home in page.passed_on.items()]
    section = None
    for public in page.own:
        title = public.package or public.home
        if title != section:
            section = title
            lines += ["", f"## From `{section}`"]
        lines += ["", f"::: {public.path}", *_options()]
    return "\n".join(lines) + "\n"


def _where(name: str, home: str, pages: list[PackagePage]) -> str:
    """A link to where a name is that a package passes on."""
    for page in pages:
        if page.package == home:
            return f"[{home}]({page.package}.md)"
        for public in page.own:
            if (public.home == home or public.package == home) and public.name == name:
                return f"[{public.path}]({page.package}.md#{public.path})"
    return f"`{home}.{name}`"


def _options(*, members: bool = True, heading: bool = True) -> list[str]:
    chosen = [] if heading else ["show_root_heading: false", "show_root_toc_entry: false"]
    chosen += [] if members else ["members: false"]
    return ["    options:", *(f"      {line}" for line in chosen)] if chosen else []


def index_text(pages: list[PackagePage]) -> str:
    """The first page of the reference."""
    lines = ["# Reference", "", "Every public name, by package, with what its docstring says.", ""]
    lines += ["| package | names |", "|---|---|"]
    for page in pages:
        names = [f"`{name}`" for name in dict.fromkeys([p.name for p in page.own] + list(page.passed_on))]
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        lines.append(f"| [{page.package}]({page.package}.md) | {shown} |")
    return "\n".join(lines) + "\n"


def reference(root: Path) -> dict[str, str]:
    """All pages of the reference: where they are among the site's sources, and their text."""
    pages = package_pages(root)
    made = {"reference/index.md": index_text(pages)}
    return made | {page.uri: page_text(page, pages) for page in pages}
