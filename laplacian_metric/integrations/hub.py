"""Posteriors in folders as model hubs have them: an artifact with the posterior, and a card that says what it is.

A folder is an `laplacian_metric.core.artifact` that holds the posterior and, if there is one, a calibrated `Trust`,
beside ``README.md``. It holds no encoder, only where to get it: reading it runs nothing that is in it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hessians.pair_loss import PairLoss
from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactExistsError, Manifest, MissingArtifactError
from laplacian_metric.core.files import atomic_write
from laplacian_metric.encoder import Encoder
from laplacian_metric.integrations.card import LIBRARY, card
from laplacian_metric.integrations.optional import require
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.storage import manifest_of
from laplacian_metric.metrics import Evaluation
from laplacian_metric.trust.head import Head
from laplacian_metric.trust.trust import Trust

INSTALL = "laplacian-metric[hub]"
POSTERIOR, TRUST, CARD = "posterior", "trust", "README.md"
VERSIONS = "[0-9a-f]" * 16 + "/*"  # the files of all versions


class PosteriorManifest(Manifest):
    """What a folder with a posterior says about itself."""

    FORMAT: ClassVar[str] = "laplacian_metric posterior"
    PAYLOADS: ClassVar[tuple[str, ...]] = (POSTERIOR,)
    OPTIONAL: ClassVar[tuple[str, ...]] = (TRUST,)
    SHARED: ClassVar[bool] = True

    encoder_reference: str
    licence: str
    metrics: dict[str, float | None]
    fingerprint: str
    settings: dict[str, Any]
    loss: dict[str, Any]
    fit: dict[str, Any]
    encoder: dict[str, Any]


def save_folder(
    lam: LAM,
    folder: str | os.PathLike[str],
    *,
    encoder_reference: str | None = None,
    metrics: Mapping[str, float | None] | Evaluation | None = None,
    licence: str = "unknown",
    title: str | None = None,
    trust: Trust | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a fitted LAM into a folder, with what somebody else needs to know about it.

    Args:
        lam: fitted; the encoder stays where it is.
        folder: made if it is not there. Other files in it are left alone; a ``README.md`` that is not of a posterior is
            never replaced.
        encoder_reference: where the encoder comes from, in words or as "owner/name" of a hub. By default the name
            that the encoder was made by, if it was.
        metrics: name -> value, or what `metrics.evaluate` returned.
        licence: of the posterior, as hubs abbreviate it: "apache-2.0", "cc-by-4.0".
        title: of the card; the folder's name by default.
        trust: calibrated with the same encoder; stored with its gallery, features and labels, which whoever gets the
            folder can read. The card says how well it is calibrated, and `load_trust` reads it.
        overwrite: replace a posterior that is there already.

    Returns:
        The folder.

    Example:
        >>> import tempfile, torch
        >>> from hessians import ContrastiveLoss
        >>> encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3))
        >>> features, labels = torch.randn(40, 4), torch.arange(40) % 4
        >>> lam = LAM(encoder, ContrastiveLoss()).fit_features(features, labels, check_mode=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_folder(lam, Path(folder) / "mine", encoder_reference="our linear layer")
        ...     loaded = load_folder(path, encoder)
        >>> loaded.fingerprint() == lam.fingerprint()
        True
    """
    folder = Path(folder)
    _check_card(folder)
    _check_trust(trust, lam, folder)
    stored = manifest_of(lam).model_dump(mode="json")
    effective = {"n_effective": lam.n_effective, "prior_precision": lam.prior_precision}
    manifest = PosteriorManifest(
        made_with=stored["made_with"],
        encoder_reference=_reference(lam.encoder) if encoder_reference is None else encoder_reference,
        licence=licence,
        metrics=_plain(metrics),
        fingerprint=lam.fingerprint(),
        settings=stored["options"] | effective,
        **{name: stored[name] for name in ("loss", "fit", "encoder")},
    )
    payloads: dict[str, artifact.Payload] = {POSTERIOR: lam.save}
    if trust is not None:
        payloads[TRUST] = trust.save
    artifact.save(folder, manifest, payloads, overwrite=overwrite)
    with atomic_write(folder / CARD) as temporary:
        text = card(folder.resolve().name if title is None else title, manifest.model_dump(), trust)
        temporary.write_text(text, encoding="utf-8")
    return folder


def load_folder(folder: str | os.PathLike[str], encoder: Encoder, loss: PairLoss | None = None) -> LAM:
    """Return the posterior of a folder, for the encoder that it was fitted to; any other is refused.

    Args:
        folder: what `save_folder` wrote; downloaded first, if it is on a hub.
        encoder: with the weights that it had when the posterior was fitted.
        loss: needed where it is of a class that is not this library's.
    """
    with artifact.load(folder, PosteriorManifest) as opened:
        return LAM.load(opened.path(POSTERIOR), encoder, loss)


def load_trust(folder: str | os.PathLike[str]) -> Trust:
    """Return the calibrated `Trust` of a folder; it needs neither the encoder nor the posterior.

    Args:
        folder: what `save_folder` wrote with ``trust``.

    Example:
        >>> import tempfile, torch
        >>> from hessians import ContrastiveLoss
        >>> encoder, labels = Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3)), torch.arange(200) % 4
        >>> h = torch.eye(4)[labels] + 0.3 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        >>> lam = LAM(encoder, ContrastiveLoss()).fit_features(h, labels, check_mode=False)
        >>> trust = Trust.fit((h[:100], labels[:100]), (h[100:], labels[100:]), encoder=encoder)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     loaded = load_trust(save_folder(lam, Path(folder) / "mine", trust=trust))
        >>> bool((loaded(h[100:]).labels == trust(h[100:]).labels).all())
        True
    """
    with artifact.load(folder, PosteriorManifest) as opened:
        if TRUST not in opened.manifest.files:
            raise MissingArtifactError(
                f"{folder} was saved without a calibration: save_folder(lam, folder, trust=trust) stores one"
            )
        return Trust.load(opened.path(TRUST))


def check_folder(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a folder says about its posterior, whose files are as they were written."""
    with artifact.load(folder, PosteriorManifest, verify=True) as opened:
        return opened.manifest.model_dump()


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    token: str | None = None,
    *,
    private: bool | None = None,
    message: str = "Posterior of laplacian_metric",
) -> str:
    """Upload a folder to a repository of the Hugging Face hub.

    Other files in the folder are not uploaded. A `Trust` holds the features and the labels of its gallery.

    Args:
        folder: what `save_folder` wrote; it is checked first.
        repo_id: "owner/name"; made if it is not there.
        token: of the hub; by default what its own login left.
        private: whether a new repository is; None leaves it to the owner's settings.
        message: of the commit.

    Returns:
        The address of the commit.
    """
    folder = Path(folder)
    if not (folder / CARD).is_file():
        raise FileNotFoundError(f"{folder.name} lacks {CARD}: save it again")
    with artifact.load(folder, PosteriorManifest, verify=True) as opened:
        api = require("huggingface_hub", "push", INSTALL).HfApi(token=token)
        api.create_repo(repo_id, repo_type="model", private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo_id,
            folder_path=str(folder),
            repo_type="model",
            commit_message=message,
            allow_patterns=[CARD, artifact.POINTER, f"{opened.version.name}/*"],
            delete_patterns=[VERSIONS],
        )
    return str(getattr(done, "commit_url", done))


def _reference(encoder: Encoder) -> str:
    recipe = encoder.recipe
    return f'Encoder.from_name("{recipe["name"]}")' if recipe and "name" in recipe else "not given"


def _plain(metrics: Mapping[str, float | None] | Evaluation | None) -> dict[str, float | None]:
    """Numbers that JSON has; NaN and infinity become None."""
    values = metrics.values if isinstance(metrics, Evaluation) else metrics or {}
    plain: dict[str, float | None] = {}
    for name, value in values.items():
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"metrics[{name!r}] is a {type(value).__name__}, a number is needed") from error
        plain[str(name)] = number if number is None or math.isfinite(number) else None
    return plain


def _check_card(folder: Path) -> None:
    """Refuse to replace a card of something else."""
    path, ours = folder / CARD, f"library_name: {LIBRARY}\n"
    if path.exists() and not (path.is_file() and ours in path.read_text(encoding="utf-8", errors="replace")):
        raise ArtifactExistsError(f"{folder} has a {CARD} of something else: save into another folder")


def _check_trust(trust: Trust | None, lam: LAM, folder: Path) -> None:
    """Refuse a calibration for another head, and to drop the one of a posterior that is replaced."""
    if trust is not None:
        head = Head.of(lam)
        if (
            trust.spaces.head is not None
            and head is not None
            and not np.array_equal(trust.spaces.head.weight, head.weight)
        ):
            raise ValueError(
                "trust was calibrated with another head than lam's: fit it with encoder=lam.encoder"
            )
    elif (folder / artifact.POINTER).exists() and (
        TRUST in artifact.read_manifest(folder, PosteriorManifest).files
    ):
        raise ArtifactExistsError(
            f"{folder} holds a calibration with the posterior that would be replaced: pass trust=trust, which may be "
            "load_trust(folder), or name another folder"
        )
