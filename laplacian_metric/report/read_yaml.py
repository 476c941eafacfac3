"""YAML files in which nothing is said twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no YAML, no mapping, or has a key twice, of which YAML would silently keep the last.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "a.yaml").write_text("a: [1, 2]")
        ...     read_yaml(Path(folder) / "a.yaml")
        {'a': [1, 2]}
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    import yaml  # imported here, because importing the package stays light

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
            if twice is not None:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{twice!r} is there twice", node.start_mark
                )
            return super().construct_mapping(node, deep)

    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no mapping: it needs 'name: ...' lines")
    return content
