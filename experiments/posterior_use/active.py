"""Which images to label: accuracy against labels, by what the posterior, a vote, a distance or chance would choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.posterior_use.measure import fitted, votes
from experiments.posterior_use.situations import TEST, drawn, trained_head
from experiments.trust.features import image_set_features

FIRST, MORE, ROUNDS = 20, 40, 6
STRATEGIES = ("random", "gallery distance", "margin", "vote", "1/kappa", "joint samples")
SAMPLES = 20
SHARP = 0.1


def priorities(
    strategy: str, h: Tensor, labelled: NDArray[Any], labels: NDArray[Any], head: nn.Linear
) -> Tensor:
    """Return how much each image (N,) should be labelled; ``labelled`` are rows whose labels are known."""
    names, codes = np.unique(labels[labelled], return_inverse=True)
    members = F.one_hot(torch.from_numpy(codes), len(names)).float()
    with torch.no_grad():
        z = F.normalize(head(h), dim=1)
    if strategy == "gallery distance":
        return -(z @ z[labelled].T).max(1).values
    if strategy in ("1/kappa", "joint samples"):
        lam = fitted(head, h[labelled].numpy(), labels[labelled])
        if strategy == "1/kappa":
            return -lam.embed_features(h).kappa
        draws = lam.sample_embeddings(h, SAMPLES, generator=torch.Generator().manual_seed(0))
    else:
        draws = iter([z])
    shares = torch.stack([votes(rows, rows[labelled], members, SHARP) for rows in draws])
    entropy = torch.special.entr(shares.mean(0)).sum(1)
    if (
        strategy == "joint samples"
    ):  # how much the draws disagree: the mutual information of weights and class
        return entropy - torch.special.entr(shares).sum(2).mean(0)
    best = shares[0].topk(min(2, len(names)), dim=1).values
    return best[:, -1] - best[:, 0] if strategy == "margin" else entropy


def curve(root: Path, cache: Path, source: str, strategy: str, seed: int) -> dict[str, Any]:
    """Return the accuracy of the nearest labelled image on test queries after each round of labelling.

    All strategies begin with the same 20 images, drawn at random, and take 40 more in each of six rounds; the head is
    trained anew, from the same start, after each. Batches are the images of highest priority, and nothing is tuned.
    """
    pool, test = (image_set_features(root, cache, f"{source}-{split}") for split in ("train", "test"))
    test = drawn(test, TEST, seed)
    h, queries = (torch.from_numpy(content["h"].astype(np.float32)) for content in (pool, test))
    generator = np.random.default_rng(seed)
    labelled = generator.permutation(len(h))[:FIRST]
    accuracy = []
    for number in range(ROUNDS + 1):
        head = trained_head(pool["h"][labelled], pool["labels"][labelled], seed)
        with torch.no_grad():
            nearest = (F.normalize(head(queries), dim=1) @ F.normalize(head(h[labelled]), dim=1).T).argmax(1)
        accuracy.append(float((pool["labels"][labelled][nearest.numpy()] == test["labels"]).mean()))
        if number == ROUNDS:
            break
        if strategy == "random":
            order = generator.permutation(len(h))
        else:
            order = priorities(strategy, h, labelled, pool["labels"], head).argsort(descending=True).numpy()
        labelled = np.concatenate([labelled, order[~np.isin(order, labelled)][:MORE]])
    return {"labels": [FIRST + MORE * number for number in range(ROUNDS + 1)], "accuracy": accuracy}
