"""A trained encoder with its posterior in one folder: everything that it takes to embed an image.

A folder holds ``model.json``, ``encoder.safetensors``, ``posterior.safetensors`` and ``seen.safetensors``, digests of
the images that it was fitted to. It is numbers and JSON: reading it runs nothing that is in it, and nothing is parsed
before its digest was found right. The digests tell damage and mix-ups; they are no signature.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import laplacian_metric
from hessians.pair_loss import PairLoss
from laplacian_metric.core.files import atomic_write, replace_folder
from laplacian_metric.data.images import Preparation
from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.encoder.networks.scaling import PixelScaling
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.retrieval.digests import digest_of, digest_of_dict

FORMAT, VERSION = "laplacian_metric model", 1
MANIFEST, ENCODER, POSTERIOR, SEEN = (
    "model.json",
    "encoder.safetensors",
    "posterior.safetensors",
    "seen.safetensors",
)
FILES = (ENCODER, POSTERIOR, SEEN)
SECTIONS: dict[str, tuple[type, ...]] = {
    "encoder": (dict,),
    "preparation": (dict, type(None)),
    "class_names": (list,),
    "about": (dict,),
    "files": (dict,),
}
# What a file may decide about an architecture. Other options of timm and torchvision can name files to be read.
OPTIONS = (
    "digits",
    "channels",
    "num_classes",
    "in_chans",
    "img_size",
    "image_size",
    "global_pool",
    "pooling",
)
# The one dtype that heads of features have besides float32.
DTYPES = {"torch.float32": torch.float32, "torch.float64": torch.float64}


class DamagedModelError(ValueError):
    """A saved model is not as it was written."""


@dataclass(frozen=True, eq=False)
class ModelFolder:
    """What a model folder holds.

    Attributes:
        lam: the posterior, with its encoder.
        preparation: how an image becomes what the encoder takes; None where its inputs are features.
        options: those that the encoder's architecture was made with, beside its name and dimension.
        class_names: of the images that it was fitted to.
        about: where it comes from, as plain values, without the paths of a machine.
        seen: "train" and "validation": digests of the images that it was fitted to and calibrated by, each (N,) int64.

    Example:
        >>> import tempfile
        >>> from hessians import ContrastiveLoss
        >>> encoder = Encoder(nn.Identity(), nn.Linear(4, 3))
        >>> features, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> lam = LAM(encoder, ContrastiveLoss()).fit_features(features, labels, check_mode=False)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = ModelFolder(lam).save(Path(place) / "model")
        ...     again = ModelFolder.load(folder)
        >>> again.takes_features, again.lam.fingerprint() == lam.fingerprint()
        (True, True)
    """

    lam: LAM
    preparation: Preparation | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    seen: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def encoder(self) -> Encoder:
        """The posterior's encoder."""
        return self.lam.encoder

    @property
    def takes_features(self) -> bool:
        """Whether its inputs are features, and not images."""
        return isinstance(self.encoder.backbone, nn.Identity)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the folder, which is there whole or not at all.

        An encoder that came neither from a name nor takes features is written too; whoever loads it has to pass its
        architecture.

        Args:
            folder: to be made.
            overwrite: replace a model that is there; any other folder is left alone.
        """
        target = Path(folder)
        check_target(target, overwrite)
        # Before anything is written: a description that could not be read again.
        manifest = {"format": FORMAT, "version": VERSION, "made_with": _versions(), **self._described()}
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        temporary = target.absolute().with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
        temporary.mkdir()
        try:
            self._write(temporary, manifest)
            replace_folder(temporary, target.absolute())
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target

    def _described(self) -> dict[str, Any]:
        prepared = self.preparation
        if prepared is None and not self.takes_features:
            raise ValueError("preparation is missing: say how an image becomes what the encoder takes")
        told: dict[str, Any] = _plain(
            {
                "encoder": _described_encoder(self.encoder, self.options),
                "preparation": None
                if prepared is None
                else {name: getattr(prepared, name) for name in ("image_size", "channels", "preprocessing")},
                "class_names": list(self.class_names),
                "about": dict(self.about),
            }
        )
        return told

    def _write(self, folder: Path, manifest: dict[str, Any]) -> None:
        """All files; the manifest is the last."""
        from safetensors.torch import save_file

        save_encoder(self.encoder, folder / ENCODER)
        told = manifest["encoder"]
        if told["kind"] != "own" and (
            _made_encoder(folder / ENCODER, told, None).fingerprint() != self.encoder.fingerprint()
        ):
            raise ValueError(
                f"the encoder is not made again by its name, {told['name']!r}, and its options: pass all of its options"
            )
        self.lam.save(folder / POSTERIOR)
        found = {name: tensor.contiguous() for name, tensor in self.seen.items()}
        with atomic_write(folder / SEEN) as temporary:
            save_file(found, temporary)
        files = {
            name: {"bytes": (folder / name).stat().st_size, "sha256": digest_of(folder / name)}
            for name in FILES
        }
        manifest = {**manifest, "files": files}
        with atomic_write(folder / MANIFEST) as temporary:
            whole = {**manifest, "digest": digest_of_dict(manifest)}
            temporary.write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        architecture: nn.Module | Callable[[], nn.Module] | None = None,
        loss: PairLoss | None = None,
        device: torch.device | str = "cpu",
    ) -> ModelFolder:
        """Read a folder after its files were found to be as they were written.

        Args:
            folder: what `save` wrote.
            architecture: a module, or what makes one, where the encoder came neither from a name nor takes features.
            loss: needed where it is of a class that is not this library's.
            device: where the encoder is to compute.
        """
        from safetensors.torch import load_file

        place = Path(folder)
        manifest = read_manifest(place)
        _verify(place, manifest)
        encoder = _made_encoder(place / ENCODER, manifest["encoder"], architecture).to(device).eval()
        prepared = manifest["preparation"]
        return cls(
            lam=LAM.load(place / POSTERIOR, encoder, loss),
            preparation=None if prepared is None else Preparation(**prepared),
            options=manifest["encoder"]["options"],
            class_names=tuple(manifest["class_names"]),
            about=manifest["about"],
            seen=load_file(place / SEEN),
        )


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a folder says about its model, checked against its own digest, without reading the other files."""
    place = Path(folder)
    if not place.is_dir():
        if place.exists():
            raise NotADirectoryError(f"{place} is a file, the folder of a model is needed")
        raise FileNotFoundError(f"there is no model folder {place}")
    path = place / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{place} holds no model: it has no {MANIFEST}")
    again = "copy the folder again"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedModelError(f"{MANIFEST} in {place} is no JSON ({error}): {again}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} in {place} is something else's, {place.name} holds no model")
    version = manifest.get("version")
    if type(version) is not int or version > VERSION:
        raise ValueError(
            f"{place} is in format {version!r}, this version reads up to {VERSION}: update laplacian_metric"
        )
    told = {name: value for name, value in manifest.items() if name != "digest"}
    if manifest.get("digest") != digest_of_dict(told):
        raise DamagedModelError(f"{MANIFEST} in {place} was altered after it was written: {again}")
    if any(not isinstance(manifest.get(name), kind) for name, kind in SECTIONS.items()):
        raise DamagedModelError(f"{MANIFEST} in {place} lacks what a model has: {again}")
    return manifest


def check_target(target: Path, overwrite: bool) -> None:
    """Refuse a folder that is there, unless it is a model that is to be replaced."""
    if not target.exists() and not target.is_symlink():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not target.is_dir():
        raise FileExistsError(f"{target} is a file: name a new folder")
    if not _is_model(target):
        raise FileExistsError(f"{target} is there already and holds no model: name another folder")
    if not overwrite:
        raise FileExistsError(
            f"{target} holds a model already: overwrite=True replaces it, or name another folder"
        )


def _is_model(folder: Path) -> bool:
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get("format") == FORMAT


def _verify(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse files that are not as they were written."""
    if set(manifest["files"]) != set(FILES):
        raise DamagedModelError(
            f"{MANIFEST} in {folder} names {', '.join(sorted(manifest['files']))}, {', '.join(FILES)} are needed"
        )
    for name, told in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise DamagedModelError(f"{folder} lacks {name}: copy the folder again")
        size = path.stat().st_size
        if size != told["bytes"]:
            raise DamagedModelError(
                f"{name} in {folder} has {size} bytes, {told['bytes']} were written: copy the folder again"
            )
        if digest_of(path) != told["sha256"]:
            raise DamagedModelError(
                f"{name} in {folder} was altered after it was written: copy the folder again"
            )


# --- the encoder ---


def _described_encoder(encoder: Encoder, options: Mapping[str, Any]) -> dict[str, Any]:
    """How the architecture is made again."""
    head = encoder.head
    told: dict[str, Any] = {
        "name": None,
        "dim": encoder.dim,
        "features": encoder.num_features,
        "bias": head.bias is not None,
        "dtype": str(head.weight.dtype),
        "options": dict(options),
        "scaling": None,
        "kind": "features" if isinstance(encoder.backbone, nn.Identity) else "own",
    }
    name = encoder.recipe["name"] if encoder.recipe else None
    if name is not None:
        check_options(options)
        told |= {"kind": "name", "name": name, "scaling": _scaling(encoder)}
    elif options:
        raise ValueError("options are given, but the encoder does not come from a name: set encoder.recipe")
    return told


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of an architecture that a file may not decide."""
    for option in options:
        if option not in OPTIONS:
            raise ValueError(
                f"the option {option!r} of an encoder is not stored in a model folder; those are: {', '.join(OPTIONS)}"
            )


def _scaling(encoder: Encoder) -> dict[str, list[float]] | None:
    """The numbers that pixels are scaled by, which depend on the weights and are none of them."""
    found = getattr(encoder.backbone, "scaling", None)
    if not isinstance(found, PixelScaling):
        return None
    return {name: getattr(found, name).flatten().tolist() for name in ("mean", "std")}


def _made_encoder(
    path: Path, told: dict[str, Any], architecture: nn.Module | Callable[[], nn.Module] | None
) -> Encoder:
    """The encoder of a folder, with its weights."""
    kind = told["kind"]
    if kind == "own" and architecture is None:
        raise ValueError(
            f"the encoder in {path.parent} came from a module of its own: load it in Python, "
            "ModelFolder.load(folder, architecture=...), with what makes that module"
        )
    if kind == "own" or architecture is not None:
        return Encoder.from_checkpoint(path, architecture)
    if kind == "features":
        dtype = DTYPES.get(told["dtype"], torch.float32)
        head = nn.Linear(told["features"], told["dim"], bias=told["bias"], dtype=dtype)
        return Encoder.from_checkpoint(path, Encoder(nn.Identity(), head))
    check_options(told["options"])
    encoder = Encoder.from_checkpoint(path, str(told["name"]), dim=told["dim"], **told["options"])
    encoder.recipe = {"name": told["name"], "dim": told["dim"]}
    scaling = getattr(encoder.backbone, "scaling", None)
    if told["scaling"] is not None and isinstance(scaling, PixelScaling):
        for name, values in told["scaling"].items():
            getattr(scaling, name).copy_(torch.tensor(values).reshape(-1, 1, 1))
    return encoder


# --- plain values ---


def _versions() -> dict[str, str]:
    return {"laplacian_metric": laplacian_metric.__version__, "torch": str(torch.__version__)}


def _plain(value: Any) -> Any:
    """What JSON can hold; numbers that it has no word for become None, and a path only its last part."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return value.name
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return re.sub(r"[\ud800-\udfff]", "?", str(value))
