"""The features of a base's network for every set of images, computed once into a folder and mapped from there."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from laplacian_metric.core import artifact
from laplacian_metric.core.batch import Loader
from laplacian_metric.core.manifest import ArtifactError, MissingArtifactError
from laplacian_metric.core.parallel import own_folder
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.splits import parse_split
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.heads import identity_head, principal_head, random_head, whitening_head
from laplacian_metric.laplace.features import FeaturesManifest, collect_features, load_features
from laplacian_metric.runs.image_sets import OUT, TESTS, TRAIN, TRAINING, Sets, more_options, split_of
from laplacian_metric.runs.sections import DataSection, NetworkSection

LOGGER = logging.getLogger(__name__)


def feature_sets(
    images: Sets,
    section: DataSection,
    encoder: Encoder,
    folder: Path,
    *,
    batch_size: int = 500,
    lock: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: bool | None = None,
) -> Sets:
    """Return what goes into the head for every set of images; it is computed when it is first read.

    Args:
        images: see `image_sets`; what is trained on is not augmented.
        section: which images they are.
        encoder: whose backbone is frozen.
        folder: where the features are kept; each set has a folder of its own in it.
        batch_size: of the batches that are embedded.
        lock: keeps other processes out of the folder while it is written.
        progress: whether to show bars; None asks the terminal.
    """
    fingerprint = encoder.fingerprint()

    def make(name: str) -> Dataset:
        if name == TRAINING:
            return sets[TRAIN]
        place, of = folder / name.replace("/", "-"), _source(section, name, fingerprint)
        with lock():
            features = kept_features(encoder, images[name], place, of, progress=progress)
        split = parse_split(split_of(section, name))
        return Dataset(features.features, features.labels, batch_size=batch_size, split=split)

    sets = Sets(images, make, images.images, encoder)
    return sets


def _source(section: DataSection, name: str, fingerprint: str) -> dict[str, Any]:
    """Return what the features of a set depend on."""
    outs = [out for out in section.out if name == OUT + out.label]
    return {
        "fingerprint": fingerprint,
        "data": section.model_dump(mode="json", exclude={"out", "in_memory", "workers", "augment", "tests"}),
        **({"more": more_options(section, name)} if name.startswith(TESTS) else {}),
        "out": [out.model_dump(mode="json") for out in outs],
    }


def kept_features(
    encoder: Encoder,
    images: Loader,
    folder: Path,
    of: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Return the features that an earlier run left in a folder, or compute them and keep them there.

    Args:
        encoder: whose backbone is frozen.
        images: a loader, which is read only where the folder does not have all features yet.
        folder: of this set of images alone; an interrupted pass is resumed.
        of: what the features depend on; those of something else are removed.
        dtype: in which they are kept; by default that of the backbone's output.
        progress: whether to show a bar; None asks the terminal.
    """
    stored = _stored(folder, of)
    if stored is not None:
        return stored
    return collect_features(encoder, images, folder=folder, progress=progress, of=of, dtype=dtype)


def _stored(place: Path, of: Mapping[str, Any]) -> Dataset | None:
    """Return what an earlier run left, if it is whole and of the same network and images; an interrupted one stays."""
    own = place / own_folder()
    try:
        manifest = artifact.read_manifest(own, FeaturesManifest)
        if manifest.of == of:
            return load_features(own)
        if not manifest.of:
            return None
    except MissingArtifactError:
        return None
    except ArtifactError as error:
        LOGGER.warning("%s: the features are computed again", error)
    shutil.rmtree(own)
    return None


def bytes_of(rows: int, width: int) -> int:
    """What so many features take on disk.

    Example:
        >>> bytes_of(55_000, 9_216) // 2**20
        1934
    """
    return rows * (width * torch.float32.itemsize + torch.long.itemsize)


def initial_head(
    section: NetworkSection,
    encoder: Encoder,
    features: Callable[[], Dataset],
    seed: int,
    *,
    shape_only: bool = False,
) -> nn.Linear:
    """Return the head that a section asks for above a frozen encoder; only a random one depends on the seed.

    Args:
        section: of the network.
        encoder: with the frozen backbone.
        features: returns those of the training images, which "principal" and "whitening" are made of.
        seed: of a random head.
        shape_only: it is random in any case: what it will hold is read from a checkpoint.
    """
    width = encoder.num_features
    dim = section.dim or (encoder.dim if section.head == "random" else width)
    if shape_only or section.head == "random":
        return random_head(width, dim, generator=torch.Generator().manual_seed(seed))
    if section.head in ("principal", "whitening"):
        head = principal_head if section.head == "principal" else whitening_head
        return head(features().features, dim)
    if dim != width:
        raise ValueError(
            f"network.head is 'identity', which keeps all {width} features, but dim is {dim}: leave dim out, or take "
            "'principal', 'whitening' or 'random'"
        )
    return identity_head(width)
