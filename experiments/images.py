"""The images that a result speaks of by their positions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from laplacian_metric import data
from experiments.harness.results import Result

TEST = "test"


class ImagesOfResults:
    """Loads the data sets that the configurations of results name, each once.

    Args:
        data_dir: the folder of the data sets.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._loaded: dict[str, data.Dataset] = {}

    def pictures(self, result: Result, name: str, positions: Sequence[int]) -> list[Tensor]:
        """Images (C, H, W) in [0, 1] of the test images ("test") or of the OOD images with that name."""
        section = self._section(result, name)
        images, limit = self._load(section), section["limit"]
        page_pictures = []
        for position in positions:
            # With a limit, the images were taken at even steps.
            index = position if limit is None or limit >= len(images) else position * len(images) // limit
            if not 0 <= index < len(images):
                raise ValueError(
                    f"{result.cell}, seed {result.seed} names image {position} of {name}, but {section['name']} has "
                    f"{len(images)} images: its configuration does not fit its result, run it again"
                )
            page_pictures.append(images[index][0])
        return page_pictures

    def class_names(self, result: Result) -> tuple[str, ...]:
        """The names of the classes of the test images."""
        return self._load(self._section(result, TEST)).class_names

    def title(self, result: Result, name: str) -> str:
        """What a set is called in pictures."""
        return str(self._section(result, name)["name"]) if name == TEST else name

    def _section(self, result: Result, name: str) -> dict[str, Any]:
        """Name, split, options, size and limit of a set, out of a result's configuration."""
        data_section = result.config.get("data")
        if not isinstance(data_section, Mapping) or "train" not in data_section:
            raise ValueError(
                f"{result.cell}, seed {result.seed} does not say which data it was made from: its config needs "
                "data.train; run it again"
            )
        size = data_section.get("image_size", "default")
        if name == TEST:
            split = (data_section.get("splits") or {}).get("test", "test")
            own = (data_section.get("split_options") or {}).get(TEST) or {}
            options = {**(data_section.get("options") or {}), **own}
            section = {"name": data_section["train"], "split": split, "options": options}
            return {**section, "image_size": size, "limit": data_section.get("limit")}
        for entry in data_section.get("out") or ():
            out = {"name": entry} if isinstance(entry, str) else entry
            if (out.get("label") or out["name"]) == name:
                section = {key: out.get(key) for key in ("name", "limit")}
                return {
                    **section,
                    "split": out.get("split") or "test",
                    "options": out.get("options") or {},
                    "image_size": size,
                }
        raise ValueError(
            f"{result.cell}, seed {result.seed} has images of {name!r}, which its config does not name under "
            "data.out; run it again"
        )

    def _load(self, section: dict[str, Any]) -> data.Dataset:
        key = json.dumps({name: section[name] for name in section if name != "limit"}, sort_keys=True)
        if key not in self._loaded:
            self._loaded[key] = data.load(
                section["name"],
                section["split"],
                data_dir=self.data_dir,
                image_size=section["image_size"],
                preprocessing="unit",
                **section["options"],
            )
        return self._loaded[key]
