"""Find imports that go the wrong way, by reading the sources; nothing is imported for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imported_modules(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Every module that a source imports, anywhere in it, with the line.

    `from a import b` counts as a and as a.b, since b may be a module. Relative imports are resolved against
    `module`. A call of `__import__` or `import_module` with a literal name counts too.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []  # names of types are no dependency
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:kept], *([node.module] if node.module else [])])
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("__import__", "import_module") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


# The rooms of laplacian_metric from left to right: each may import those to its left, besides itself and hessians.
ORDER = [
    "vmf",
    "core",
    "trust",
    "metrics",
    "data",
    "encoder",
    "laplace",
    "methods",
    "training",
    "galleries",
    "report",
    "integrations",
    "serve",
    "demo",
    "cli",
]
ROOMS: dict[str, tuple[str, ...]] = {room: tuple(ORDER[:place]) for place, room in enumerate(ORDER)}
OUTSIDE = ("experiments", "benchmarks")


def _room(module: str) -> str | None:
    """Return the room of laplacian_metric that a module is in; None for the package itself and for other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == "laplacian_metric" and len(parts) > 1 and parts[1] in ROOMS else None


def _family(module: str) -> str | None:
    """Return the family of methods that a module is in."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["laplacian_metric", "methods"] and len(parts) > 2 else None


def _is_wrong(module: str, imported: str, families: set[str]) -> bool:
    top, imported_top = module.split(".")[0], imported.split(".")[0]
    if imported_top in OUTSIDE or (top == "hessians" and imported_top == "laplacian_metric"):
        return True
    room, other = _room(module), _room(imported)
    if room and other and room != other:
        return other not in ROOMS[room]
    own, family = _family(module), _family(imported)
    return own is not None and family in families and family != own


def package_imports(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield every import of hessians and laplacian_metric as (place "file:line", module, imported module)."""
    for top in ("hessians", "laplacian_metric"):
        for path in sorted((root / top).rglob("*.py")):
            module = _module_name(path.relative_to(root))
            source = path.read_text(encoding="utf-8")
            for line, imported in imported_modules(source, module, path.name == "__init__.py"):
                yield f"{path.relative_to(root).as_posix()}:{line}", module, imported


def wrong_imports(root: Path) -> list[str]:
    """Return every import below `root` against the direction of the house, as "file:line: a imports b"."""
    imports = list(package_imports(root))
    paths = (root / "laplacian_metric").rglob("*.py")
    families = {family for path in paths if (family := _family(_module_name(path.relative_to(root))))}
    return [
        f"{place}: {module} imports {imported}"
        for place, module, imported in imports
        if _is_wrong(module, imported, families)
    ]


def drawing(root: Path) -> str:
    """Return the house as text: each room, the rooms that it imports today, and how many files it has."""
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    modules: dict[str, set[str]] = {room: set() for room in ROOMS}
    for _, module, imported in package_imports(root):
        room, other = _room(module), _room(imported)
        if room:
            modules[room].add(module)
            if imported.split(".")[0] == "hessians":
                used[room].add("hessians")
            elif other and other != room:
                used[room].add(other)
    order = ["hessians", *ROOMS]
    rows = [
        f"{room:<13}<- {', '.join(sorted(used[room], key=order.index)) or 'nothing'}"
        for room in ROOMS
        if modules[room]
    ]
    return "\n".join(["hessians     <- nothing", *rows])


def _module_name(path: Path) -> str:
    parts = list(path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    print(drawing(Path(__file__).resolve().parent.parent))  # noqa: T201
