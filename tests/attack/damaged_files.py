"""Damaged model folders."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder
from laplacian_metric.laplace.model_folder import ModelFolder
from tests.attack.counting import Count, damaged


def models(trials: int) -> Count:
    """Altered files of a model folder: refused by name where digests are compared, or of a byte that nobody reads."""
    count = Count("damaged model folders")
    generator = np.random.default_rng(1)
    torch.manual_seed(0)
    features, labels = torch.randn(60, 5), torch.arange(60) % 3
    lam = LAM(Encoder(nn.Identity(), nn.Linear(5, 3)), ContrastiveLoss())
    lam.fit_features(features, labels, check_mode=False)
    with tempfile.TemporaryDirectory() as place:
        model = ModelFolder(lam).save(Path(place) / "model")
        names = [path.relative_to(model) for path in sorted(model.rglob("*")) if path.is_file()]
        for trial in range(trials):
            copy = Path(shutil.copytree(model, Path(place) / f"m{trial}"))
            path = copy / names[trial % len(names)]
            path.write_bytes(damaged(path.read_bytes() or b"0", generator))
            try:
                again = ModelFolder.load(copy, verify=True).lam
                same = torch.equal(again.embed(features).kappa, lam.embed(features).kappa)
                count.add(f"{path.name} {trial}", "read" if same else "silently another", same)
            except (ValueError, OSError) as error:
                count.add(f"{path.name} {trial}", "refused", bool(str(error)))
            except Exception as error:
                count.add(f"{path.name} {trial}", f"{type(error).__name__}: {error}", False)
            shutil.rmtree(copy)
    return count
