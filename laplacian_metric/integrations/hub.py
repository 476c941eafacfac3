"""Posteriors in folders as model hubs have them: a configuration, the weights, and a card that says what they are.

A folder is ``config.json``, ``posterior.safetensors`` and ``README.md``. It holds no encoder, only where to get it:
reading it runs nothing that is in it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hessians.pair_loss import PairLoss
from laplacian_metric.core.files import atomic_write
from laplacian_metric.encoder import Encoder
from laplacian_metric.integrations.card import card
from laplacian_metric.integrations.optional import require
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.storage import describe
from laplacian_metric.metrics import Evaluation

INSTALL = "laplacian-metric[hub]"
LIBRARY = "laplacian_metric"
FORMAT = 1
CONFIG, POSTERIOR, CARD = "config.json", "posterior.safetensors", "README.md"
FILES = (CONFIG, POSTERIOR, CARD)


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
    values, fingerprint = _plain(metrics), lam.fingerprint()
    reference = _reference(lam.encoder) if encoder_reference is None else encoder_reference
    if folder.exists():
        _check_replaceable(folder, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as made:
        posterior = Path(made) / POSTERIOR
        lam.save(posterior)
        told = describe(posterior)
        config = {
            "library_name": LIBRARY,
            "format": FORMAT,
            "encoder_reference": reference,
            "licence": licence,
            "metrics": values,
            "fingerprint": fingerprint,
            "settings": {
                **told["settings"],
                "n_effective": lam.n_effective,
                "prior_precision": lam.prior_precision,
            },
            "sha256": _digest(posterior),
            **{name: told[name] for name in ("versions", "loss", "fit", "encoder")},
        }
        about = card(folder.resolve().name if title is None else title, config)
        # The configuration comes last, and an old one goes first: a folder without one is not finished.
        (folder / CONFIG).unlink(missing_ok=True)
        posterior.replace(folder / POSTERIOR)
        _write(folder / CARD, about)
        _write(folder / CONFIG, json.dumps(config, indent=2, allow_nan=False) + "\n")
    return folder


def load_folder(folder: str | os.PathLike[str], encoder: Encoder, loss: PairLoss | None = None) -> LAM:
    """The posterior of a folder, for the encoder that it was fitted to; any other is refused.

    Args:
        folder: what `save_folder` wrote; downloaded first, if it is on a hub.
        encoder: with the weights that it had when the posterior was fitted.
        loss: needed where it is of a class that is not this library's.
    """
    folder = Path(folder)
    check_folder(folder)
    return LAM.load(folder / POSTERIOR, encoder, loss)


def check_folder(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration of a folder, once the posterior is known to be the one that it was written for."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: download it first, if it is on a hub")
    config = _config(folder)
    if config is None:
        raise ValueError(
            f"{folder.name} has no {CONFIG} that save_folder wrote: it holds no posterior, or not all of it"
        )
    if type(config.get("format")) is not int or config["format"] > FORMAT:
        raise ValueError(
            f"{folder.name} has format {config.get('format')!r}, this version reads up to format {FORMAT}: update "
            "laplacian_metric"
        )
    posterior = folder / POSTERIOR
    if not posterior.is_file():
        raise FileNotFoundError(f"{folder.name} lacks {POSTERIOR}: copy the folder again")
    if _digest(posterior) != config.get("sha256"):
        raise ValueError(
            f"{POSTERIOR} in {folder.name} is not the file that {CONFIG} is of: it is damaged or was replaced; copy "
            "the folder again"
        )
    return config


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


def _check_replaceable(folder: Path, overwrite: bool) -> None:
    """Refuse to replace what is somebody else's, and a posterior unless it is asked for."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder")
    present = [name for name in FILES if (folder / name).exists()]
    foreign = [name for name in (CONFIG, CARD) if name in present and not _is_ours(folder, name)]
    if foreign:
        raise FileExistsError(
            f"{folder.name} has a {' and a '.join(foreign)} of something else: save into a folder of its own"
        )
    if present and not overwrite:
        raise FileExistsError(
            f"{folder.name} has a posterior already: overwrite=True replaces it, or name another folder"
        )


def _is_ours(folder: Path, name: str) -> bool:
    if name == CONFIG:
        return _config(folder) is not None
    return f"library_name: {LIBRARY}\n" in (folder / name).read_text(encoding="utf-8", errors="replace")


def _config(folder: Path) -> dict[str, Any] | None:
    """The configuration, if it is one of this library."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("library_name") == LIBRARY else None


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
