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
    for node in ast.walk(ast.parse(source)):
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


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _forbidden(module: str) -> tuple[str, ...]:
    """The packages that a module must not import; methods are dealt with apart."""
    if _is_in(module, "hessians"):
        return ("laplacian_metric", "experiments", "benchmarks")
    pure = any(_is_in(module, f"laplacian_metric.{room}") for room in ("metrics", "vmf"))
    if pure:
        return ("experiments", "benchmarks", "laplacian_metric.methods", "laplacian_metric.data")
    if _is_in(module, "laplacian_metric"):
        return ("experiments", "benchmarks")
    return ()


def _method_of(module: str) -> str | None:
    """The method that a module belongs to: what follows laplacian_metric.methods."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["laplacian_metric", "methods"] and len(parts) > 2 else None


def _other_method(module: str, imported: str, methods: set[str]) -> bool:
    own, other = _method_of(module), _method_of(imported)
    return own is not None and other in methods and other != own


def wrong_imports(root: Path) -> list[str]:
    """Every import below `root` that goes against the direction of the house, as "file:line: a imports b"."""
    sources = [
        path for top in ("hessians", "laplacian_metric") for path in sorted((root / top).rglob("*.py"))
    ]
    names = {path: _module_name(path.relative_to(root)) for path in sources}
    methods = {method for name in names.values() if (method := _method_of(name)) is not None}
    found = []
    for path, module in names.items():
        source = path.read_text(encoding="utf-8")
        for line, imported in imported_modules(source, module, path.name == "__init__.py"):
            wrong = any(_is_in(imported, package) for package in _forbidden(module))
            if wrong or _other_method(module, imported, methods):
                message = f"{path.relative_to(root).as_posix()}:{line}: {module} imports {imported}"
                found.append(message)
    return found


def _module_name(path: Path) -> str:
    parts = list(path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
