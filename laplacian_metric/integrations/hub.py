"""Posteriors in folders as model hubs have them: a configuration, the weights, and a card that says what they are.

A folder is ``config.json``, ``posterior.safetensors`` and ``README.md``. It holds no encoder, only where to get it:
reading it runs nothing that is in it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from hessians.pair_loss import PairLoss
from laplacian_metric.core import artifact
from laplacian_metric.core.manifest import ArtifactExistsError, Manifest
from laplacian_metric.encoder import Encoder
from laplacian_metric.integrations.card import card
from laplacian_metric.integrations.optional import require
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.stored_header import header_of
from laplacian_metric.metrics import Evaluation

INSTALL = "laplacian-metric[hub]"
LIBRARY = "laplacian_metric"
CONFIG, POSTERIOR, CARD = "config.json", "posterior.safetensors", "README.md"
FILES = (CONFIG, POSTERIOR, CARD)


class PosteriorManifest(Manifest):
    """The configuration of a folder with a posterior; version 1 had neither a digest of its own nor sizes."""

    FORMAT: ClassVar[str] = "laplacian_metric posterior"
    VERSION: ClassVar[int] = 2
    DIGEST_SINCE: ClassVar[int] = 2
    FILE: ClassVar[str] = CONFIG
    PAYLOADS: ClassVar[tuple[str, ...]] = (POSTERIOR,)
    EDITABLE: ClassVar[tuple[str, ...]] = (CARD,)

    library_name: Literal["laplacian_metric"] = "laplacian_metric"
    encoder_reference: str
    licence: str
    metrics: dict[str, float | None]
    fingerprint: str
    settings: dict[str, Any]
    loss: dict[str, Any]
    fit: dict[str, Any]
    encoder: dict[str, Any]

    @classmethod
    def version_of(cls, values: Mapping[str, Any]) -> Any:
        """Return the version, which version 1 had as its format."""
        if values.get("library_name") == LIBRARY and isinstance(values.get("format"), int):
            return values["format"]
        return super().version_of(values)

    @classmethod
    def upgraded(cls, values: dict[str, Any], version: int) -> dict[str, Any]:
        """Return the fields as version 2 has them."""
        if version > 1:
            return values
        kept = {name: value for name, value in values.items() if name not in ("sha256", "versions")}
        files = {POSTERIOR: {"bytes": None, "sha256": values.get("sha256", "")}}
        return {**kept, "made_with": values.get("versions"), "files": files}


def save_folder(
    lam: LAM,
    folder: str | os.PathLike[str],
    *,
    encoder_reference: str | None = None,
    metrics: Mapping[str, float | None] | Evaluation | None = None,
    licence: str = "unknown",
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a fitted LAM into a folder, with what somebody else needs to know about it.

    Args:
        lam: fitted; the encoder stays where it is.
        folder: made if it is not there. Other files in it are left alone; a ``config.json`` or ``README.md`` that is
            not of a posterior is never replaced.
        encoder_reference: where the encoder comes from, in words or as "owner/name" of a hub. By default the name
            that the encoder was made by, if it was.
        metrics: name -> value, or what `metrics.evaluate` returned.
        licence: of the posterior, as hubs abbreviate it: "apache-2.0", "cc-by-4.0".
        title: of the card; the folder's name by default.
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
        ...     made = save_folder(lam, Path(folder) / "mine", encoder_reference="our linear layer")
        ...     found, files = load_folder(made, encoder), sorted(file.name for file in made.iterdir())
        >>> files, found.fingerprint() == lam.fingerprint()
        (['README.md', 'config.json', 'posterior.safetensors'], True)
    """
    folder = Path(folder)
    _check_card(folder, overwrite)
    header = header_of(lam, lam._fit())
    effective = {"n_effective": lam.n_effective, "prior_precision": lam.prior_precision}
    manifest = PosteriorManifest(
        made_with=header.versions,
        encoder_reference=_reference(lam.encoder) if encoder_reference is None else encoder_reference,
        licence=licence,
        metrics=_plain(metrics),
        fingerprint=lam.fingerprint(),
        settings=header.settings.model_dump() | effective,
        loss=header.loss.model_dump(by_alias=True),
        fit=header.fit.model_dump(),
        encoder=header.encoder.model_dump(),
    )
    text = card(folder.resolve().name if title is None else title, manifest.model_dump())
    return artifact.save(folder, manifest, {POSTERIOR: lam.save, CARD: text}, overwrite=overwrite)


def load_folder(folder: str | os.PathLike[str], encoder: Encoder, loss: PairLoss | None = None) -> LAM:
    """Return the posterior of a folder, for the encoder that it was fitted to; any other is refused.

    Args:
        folder: what `save_folder` wrote; downloaded first, if it is on a hub.
        encoder: with the weights that it had when the posterior was fitted.
        loss: needed where it is of a class that is not this library's.
    """
    with artifact.load(folder, PosteriorManifest) as opened:
        return LAM.load(opened.path(POSTERIOR), encoder, loss)


def check_folder(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the configuration of a folder whose posterior is as it was written."""
    with artifact.load(folder, PosteriorManifest) as opened:
        return opened.manifest.model_dump()


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    token: str | None = None,
    *,
    private: bool | None = None,
    message: str = "Posterior of laplacian_metric",
) -> str:
    """Upload a folder's three files, and nothing else that is in it, to a repository of the Hugging Face hub.

    Args:
        folder: what `save_folder` wrote; it is checked first.
        repo_id: "owner/name"; made if it is not there.
        token: of the hub; by default what its own login left.
        private: whether a new repository is; None leaves it to the owner's settings.
        message: of the commit.

    Returns:
        The address of the commit.
    """
    check_folder(folder)
    missing = [name for name in FILES if not (Path(folder) / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{Path(folder).name} lacks {', '.join(missing)}: save it again")
    api = require("huggingface_hub", "push", INSTALL).HfApi(token=token)
    api.create_repo(repo_id, repo_type="model", private=private, exist_ok=True)
    done = api.upload_folder(
        repo_id=repo_id,
        folder_path=str(folder),
        repo_type="model",
        commit_message=message,
        allow_patterns=list(FILES),
    )
    return str(getattr(done, "commit_url", done))


def _reference(encoder: Encoder) -> str:
    recipe = encoder.recipe
    return f'Encoder.from_name("{recipe["name"]}")' if recipe and "name" in recipe else "not given"


def _plain(metrics: Mapping[str, float | None] | Evaluation | None) -> dict[str, float | None]:
    """Numbers that JSON has; NaN and infinity become None."""
    values = metrics.values if isinstance(metrics, Evaluation) else metrics or {}
    found: dict[str, float | None] = {}
    for name, value in values.items():
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"metrics[{name!r}] is a {type(value).__name__}, a number is needed") from error
        found[str(name)] = number if number is None or math.isfinite(number) else None
    return found


def _check_card(folder: Path, overwrite: bool) -> None:
    """Refuse to replace a card of something else, and a posterior without its configuration unless it is asked for."""
    path, ours = folder / CARD, f"library_name: {LIBRARY}\n"
    if path.exists() and not (path.is_file() and ours in path.read_text(encoding="utf-8", errors="replace")):
        raise ArtifactExistsError(f"{folder} has a {CARD} of something else: save into a folder of its own")
    if not overwrite and any((folder / name).exists() for name in (CARD, POSTERIOR)):
        raise ArtifactExistsError(
            f"{folder} holds a saved posterior already: pass overwrite=True to replace it, or name another folder"
        )
