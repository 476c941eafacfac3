"""Links and headings of the Markdown pages: where a link points to in the repository, and where that is on the site."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

DOCS = "docs"
HOME = "index.md"
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^()\s]+)(\))")
_OUTSIDE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")


@dataclass(frozen=True)
class Link:
    """One link of a page, with the line that it is on (from 1)."""

    target: str
    line: int

    @property
    def outside(self) -> bool:
        """Whether it leaves the repository."""
        return bool(_OUTSIDE.match(self.target))

    @property
    def path(self) -> str:
        """The file, as it is written; empty where the link stays on its page."""
        return self.target.partition("#")[0]

    @property
    def heading(self) -> str:
        """The heading's name, empty where there is none."""
        return self.target.partition("#")[2]


def slug(heading: str, separator: str = "-") -> str:
    """The name of a heading in links, as repository hosts make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", separator)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not in a fenced block, with their numbers from 1."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and line.strip() == found[1]:
            fence = ""
        elif not fence:
            yield number, line


def links(text: str) -> list[Link]:
    """All links and pictures of a page."""
    return [Link(found[2], number) for number, line in prose(text) for found in _LINK.finditer(line)]


def headings(text: str) -> list[str]:
    """The names of a page's headings; those of repeated ones are numbered."""
    seen: dict[str, int] = {}
    names = []
    for _, line in prose(text):
        if found := _HEADING.match(line):
            name = slug(found[1])
            count = seen.get(name, 0)
            seen[name] = count + 1
            names.append(f"{name}-{count}" if count else name)
    return names


def title(text: str) -> str:
    """The first heading of a page."""
    return next(found[1] for _, line in prose(text) if (found := _HEADING.match(line)))


def resolve(page: str, target: str) -> str:
    """The path in the repository that a link's path means, on the page with the given path."""
    return os.path.normpath(PurePosixPath(page).parent / target).replace(os.sep, "/")


def site_name(path: str) -> str:
    """Where a file of the repository is among the site's sources; folders have an `index.md`."""
    if path == "README.md":
        return HOME
    return path.removeprefix(f"{DOCS}/")


def rewrite(page: str, text: str, is_folder: Callable[[str], bool]) -> str:
    """The page with its links as they have to be on the site."""
    own = PurePosixPath(site_name(page)).parent

    def moved(found: re.Match[str]) -> str:
        link = Link(found[2], 0)
        if link.outside or not link.path:
            return found[0]
        path = resolve(page, link.path)
        place = f"{site_name(path)}/{HOME}" if is_folder(path) else site_name(path)
        relative = os.path.relpath(place, own).replace(os.sep, "/")
        return f"{found[1]}{relative}{'#' * bool(link.heading)}{link.heading}{found[3]}"

    lines = text.splitlines()
    for number, line in prose(text):
        lines[number - 1] = _LINK.sub(moved, line)
    return "\n".join(lines) + "\n"


def linked_files(root: Path) -> list[str]:
    """Files and folders outside of docs/ that README.md and the pages of docs/ lead to, directly or by other pages."""
    found: list[str] = []
    waiting = [path.relative_to(root).as_posix() for path in sorted((root / DOCS).rglob("*.md"))]
    waiting += ["README.md"] * (root / "README.md").is_file()  # the first page
    while waiting:
        page = waiting.pop(0)
        for link in links((root / page).read_text(encoding="utf-8")):
            if link.outside or not link.path:
                continue
            path = resolve(page, link.path)
            if (root / path).is_dir() and (root / path / "README.md").is_file():
                path = f"{path}/README.md"
            inside = path == "README.md" or path.startswith((f"{DOCS}/", "../"))
            if not inside and path not in found and (root / path).exists():
                found.append(path)
                if path.endswith(".md"):
                    waiting.append(path)
    return sorted(found)


def problems(root: Path, page: str) -> list[str]:
    """The links of a page, by its path in the repository, that lead nowhere."""
    text = (root / page).read_text(encoding="utf-8")
    found = []
    for link in links(text):
        if link.outside:
            continue
        path = resolve(page, link.path) if link.path else page
        target = root / path
        here = f"{page}:{link.line}: "
        if path.startswith("../") or not target.exists():
            found.append(f"{here}there is no {path}")
        elif link.heading and target.suffix != ".md":
            found.append(f"{here}{path} has no headings")
        elif link.heading and link.heading not in headings(target.read_text(encoding="utf-8")):
            found.append(f"{here}{path} has no heading {link.heading!r}")
    return found
