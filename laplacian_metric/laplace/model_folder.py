"""A trained encoder with its posterior in one folder: everything that it takes to embed an image.

A folder is an `laplacian_metric.core.artifact` with ``encoder.safetensors``, the posterior, the calibrated `Trust` if
there is one, and ``seen.safetensors``, digests of the images that it was fitted to.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hessians.pair_loss import PairLoss
from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import Manifest
from laplacian_metric.core.checked import Strict
from laplacian_metric.core.dataset import Dataset, shared
from laplacian_metric.core.images import Preparation
from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.encoder.layers import PixelScaling
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.trust.trust import Trust

LOGGER = logging.getLogger(__name__)

ROLES = {"train": "was fitted to", "validation": "was calibrated by"}
ENCODER, POSTERIOR, SEEN, TRUST = "encoder.safetensors", "posterior", "seen.safetensors", "trust"
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


class EncoderEntry(Strict):
    """How the architecture of an encoder is made again."""

    kind: Literal["name", "features", "own"]
    name: str | None
    dim: int
    features: int
    bias: bool
    dtype: str
    options: dict[str, Any]
    scaling: dict[Literal["mean", "std"], list[float]] | None


class PreparationEntry(Strict):
    """How an image becomes what the encoder takes."""

    image_size: int | None = Field(ge=1)
    channels: Literal[1, 3] | None
    preprocessing: Literal["unit", "imagenet"]


class ModelManifest(Manifest):
    """What a model folder says about itself."""

    FORMAT: ClassVar[str] = "laplacian_metric model"
    PAYLOADS: ClassVar[tuple[str, ...]] = (ENCODER, POSTERIOR, SEEN)
    OPTIONAL: ClassVar[tuple[str, ...]] = (TRUST,)

    encoder: EncoderEntry
    preparation: PreparationEntry | None
    class_names: list[str]
    about: dict[str, Any]


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
        trust: says how far the nearest training image of a query can be trusted, where it was calibrated.

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
    trust: Trust | None = None

    @property
    def encoder(self) -> Encoder:
        """The posterior's encoder."""
        return self.lam.encoder

    @property
    def takes_features(self) -> bool:
        """Whether its inputs are features, and not images."""
        return self.encoder.takes_features

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the folder, which is there whole or not at all.

        An encoder that came neither from a name nor takes features is written too; whoever loads it has to pass its
        architecture.

        Args:
            folder: to be made.
            overwrite: replace a model that is there; any other folder is left alone.
        """
        prepared = self.preparation
        if prepared is None and not self.takes_features:
            raise ValueError("preparation is missing: say how an image becomes what the encoder takes")
        manifest = ModelManifest(
            made_with={"torch": str(torch.__version__)},
            encoder=_described_encoder(self.encoder, self.options),
            preparation=None
            if prepared is None
            else PreparationEntry.model_validate(
                {name: getattr(prepared, name) for name in PreparationEntry.model_fields}
            ),
            class_names=_plain(self.class_names),
            about=_plain(self.about),
        )
        payloads: dict[str, artifact.Payload] = {
            ENCODER: lambda path: self._write_encoder(path, manifest.encoder),
            POSTERIOR: self.lam.save,
            SEEN: self.seen,
        }
        if self.trust is not None:
            payloads[TRUST] = self.trust.save
        return artifact.save(folder, manifest, payloads, overwrite=overwrite)

    def _write_encoder(self, path: Path, entry: EncoderEntry) -> None:
        save_encoder(self.encoder, path)
        if entry.kind != "own" and (
            _made_encoder(path, path.parent, entry, None).fingerprint() != self.encoder.fingerprint()
        ):
            raise ValueError(
                f"the encoder is not made again by its name, {entry.name!r}, and its options: pass all of its options"
            )

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        architecture: nn.Module | Callable[[], nn.Module] | None = None,
        loss: PairLoss | None = None,
        device: torch.device | str = "cpu",
        verify: bool = False,
    ) -> ModelFolder:
        """Read a folder.

        Args:
            folder: what `save` wrote.
            architecture: a module, or what makes one, where the encoder came neither from a name nor takes features.
            loss: needed where it is of a class that is not this library's.
            device: where the encoder is to compute.
            verify: compare the digests of all files first.
        """
        with artifact.load(folder, ModelManifest, verify=verify) as opened:
            manifest, path = opened.manifest, opened.path(ENCODER)
            prepared = manifest.preparation
            encoder = _made_encoder(path, opened.folder, manifest.encoder, architecture).to(device).eval()
            return cls(
                lam=LAM.load(opened.path(POSTERIOR), encoder, loss),
                preparation=None if prepared is None else Preparation(**prepared.model_dump()),
                options=manifest.encoder.options,
                class_names=tuple(manifest.class_names),
                about=manifest.about,
                seen=opened.tensors(SEEN),
                trust=Trust.load(opened.path(TRUST)) if TRUST in manifest.files else None,
            )


# --- the images that it has seen ---


def class_labels(source: Dataset) -> list[str]:
    """Return the name of every image's class, by which the classes of several data sets are compared."""
    source.known_labels()
    names: list[str] = source.label_names.tolist()
    return names


def warn_if_seen(model: ModelFolder, source: Dataset, consequence: str) -> dict[str, int]:
    """Warn if a model was fitted to, or calibrated by, some of the images; return how many by role."""
    if not model.seen:
        return {}
    digests = source.digests()
    counts = {role: shared(digests, seen) for role, seen in model.seen.items()}
    for role, count in counts.items():
        if count:
            verb = ROLES.get(role, "has seen")
            LOGGER.warning(
                "the model %s %d of the %d images of %s: %s",
                verb,
                count,
                len(source),
                source.title,
                consequence,
            )
    return counts


# --- the encoder ---


def _described_encoder(encoder: Encoder, options: Mapping[str, Any]) -> EncoderEntry:
    head = encoder.head
    name = encoder.recipe["name"] if encoder.recipe else None
    if name is not None:
        check_options(options)
    elif options:
        raise ValueError("options are given, but the encoder does not come from a name: set encoder.recipe")
    without_name = "features" if encoder.takes_features else "own"
    return EncoderEntry.model_validate(
        {
            "kind": without_name if name is None else "name",
            "name": name,
            "dim": encoder.dim,
            "features": encoder.num_features,
            "bias": head.bias is not None,
            "dtype": str(head.weight.dtype),
            "options": _plain(options),
            "scaling": None if name is None else _scaling(encoder),
        }
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of an architecture that a file may not decide."""
    for option in options:
        if option not in OPTIONS:
            raise ValueError(
                f"the option {option!r} of an encoder is not stored in a model folder; those are: {', '.join(OPTIONS)}"
            )


def _scaling(encoder: Encoder) -> dict[str, list[float]] | None:
    """The numbers that pixels are scaled by, which depend on the weights and are none of them."""
    scaling = getattr(encoder.backbone, "scaling", None)
    if not isinstance(scaling, PixelScaling):
        return None
    return {name: getattr(scaling, name).flatten().tolist() for name in ("mean", "std")}


def _made_encoder(
    path: Path,
    folder: Path,
    entry: EncoderEntry,
    architecture: nn.Module | Callable[[], nn.Module] | None,
) -> Encoder:
    """Return the encoder of a folder, with the weights that are at ``path``."""
    if entry.kind == "own" and architecture is None:
        raise ValueError(
            f"the encoder in {folder} came from a module of its own: load it in Python, "
            "ModelFolder.load(folder, architecture=...), with what makes that module"
        )
    if entry.kind == "own" or architecture is not None:
        return Encoder.from_checkpoint(path, architecture)
    if entry.kind == "features":
        dtype = DTYPES.get(entry.dtype, torch.float32)
        head = nn.Linear(entry.features, entry.dim, bias=entry.bias, dtype=dtype)
        return Encoder.from_checkpoint(path, Encoder(nn.Identity(), head))
    check_options(entry.options)
    encoder = Encoder.from_checkpoint(path, str(entry.name), dim=entry.dim, **entry.options)
    encoder.recipe = {"name": entry.name, "dim": entry.dim}
    scaling = getattr(encoder.backbone, "scaling", None)
    if entry.scaling is not None and isinstance(scaling, PixelScaling):
        for name, values in entry.scaling.items():
            getattr(scaling, name).copy_(torch.tensor(values).reshape(-1, 1, 1))
    return encoder


# --- plain values ---


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
