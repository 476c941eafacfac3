"""What votes over joint samples of a posterior say of the queries of a situation, beside votes that need none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.posterior_use.situations import trained_head
from experiments.trust.ablation import scored_with
from experiments.trust.measure import MEASURES, Scored, inputs, measures
from experiments.trust.settings import Setting
from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder

SAMPLES = 30
MEMBERS = 5
SHARPNESS = (0.01, 0.02, 0.05, 0.1, 0.2)
NOISE = (0.03, 0.1, 0.3, 1.0)
COVERAGE = 0.9
VOTES = ("features", "embedding", "both spaces", "noise", "five heads", "joint samples")
ALL = slice(None)

Shares = dict[str, Tensor]


def fitted(head: nn.Linear, h: NDArray[Any], labels: NDArray[Any]) -> LAM:
    """Return the diagonal posterior of a head, fitted on labelled features; the prior by the library's default."""
    lam = LAM(Encoder(nn.Identity(), head).eval(), ContrastiveLoss(margin=0.7, negatives="active"))
    codes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    lam.fit_features(torch.from_numpy(h.astype(np.float32)), codes, progress=False, check_mode=False)
    lam.optimize_prior_precision()
    return lam


def linear(setting: Setting) -> nn.Linear:
    """Return the head of a setting as a layer."""
    assert setting.head is not None
    assert setting.head.bias is not None
    layer = nn.Linear(setting.head.weight.shape[1], setting.head.weight.shape[0])
    layer.load_state_dict(
        {"weight": torch.from_numpy(setting.head.weight), "bias": torch.from_numpy(setting.head.bias)}
    )
    return layer.requires_grad_(False)


def votes(queries: Tensor, items: Tensor, members: Tensor, sharpness: float) -> Tensor:
    """Return the share of each class (Q, C) among all items, which are weighted by exp(cosine / sharpness).

    ``members`` (N, C) says of which class an item is.
    """
    return torch.softmax(queries @ items.T / sharpness, dim=1) @ members


class Gallery:
    """The queries and items of a situation, to be embedded again and again by one head or another.

    Attributes:
        parts: the names of the parts that are asked: "validation", "test", OOD queries.
        features: (N, H), those of all parts and of their galleries, one after the other.
        truth: by part, the number of each query's class, -1 where the gallery does not have it.
    """

    def __init__(self, setting: Setting) -> None:
        calibration = "calibration" if setting.zero_shot else "gallery"
        self.parts = ["validation", "test", *setting.ood()]
        self._gallery = {name: calibration if name == "validation" else "gallery" for name in self.parts}
        stacked = [*self.parts, *sorted(set(self._gallery.values()))]
        self._sizes = {name: len(setting.h(name)) for name in stacked}
        self.features = torch.from_numpy(np.concatenate([setting.h(name) for name in stacked]))
        self._names = {name: np.unique(setting.labels(name)) for name in set(self._gallery.values())}
        self._members = {
            name: F.one_hot(numbers(names, setting.labels(name)), len(names)).float()
            for name, names in self._names.items()
        }
        self.truth = {
            name: numbers(self._names[self._gallery[name]], setting.labels(name))
            for name in ("validation", "test")
        }

    def shares(self, rows: Tensor, sharpness: float, parts: Iterable[str] | None = None) -> Shares:
        """Return the votes (Q, C) of parts, all by default, when the features' embeddings are ``rows``."""
        z = dict(zip(self._sizes, F.normalize(rows, dim=1).split([*self._sizes.values()]), strict=True))
        return {
            name: votes(z[name], z[self._gallery[name]], self._members[self._gallery[name]], sharpness)
            for name in (self.parts if parts is None else parts)
        }

    def nearest(self, rows: Tensor) -> Shares:
        """Return the class (Q,) of the nearest item of the queries of each part."""
        return {name: values.argmax(1) for name, values in self.shares(rows, 1e-3).items()}

    def likelihood(self, shares: Tensor) -> float:
        """Return the mean log share of the validation queries' classes; a share counts as 0.001 at least."""
        has_class = self.truth["validation"] >= 0
        chosen = shares[has_class].gather(1, self.truth["validation"][has_class, None])
        return float(chosen.clamp(min=1e-3).log().mean())

    def best(self, draws: list[list[Tensor]]) -> Shares:
        """Return the mean votes over draws of the embeddings; of several lists of draws, the likeliest one.

        The list and the sharpness are those with the greatest likelihood of the validation queries' classes.
        """

        def mean(rows: list[Tensor], sharpness: float, parts: Iterable[str] | None = None) -> Shares:
            every = [self.shares(draw, sharpness, parts) for draw in rows]
            return {name: torch.stack([shares[name] for shares in every]).mean(0) for name in every[0]}

        choices = [(rows, sharpness) for rows in draws for sharpness in SHARPNESS]
        values = [self.likelihood(mean(*choice, ["validation"])["validation"]) for choice in choices]
        return mean(*choices[int(np.argmax(values))])


def numbers(names: NDArray[Any], labels: NDArray[Any]) -> Tensor:
    """Return the number of each label among sorted names, -1 where it is none of them."""
    places = np.searchsorted(names, labels).clip(max=len(names) - 1)
    return torch.from_numpy(np.where(names[places] == labels, places, -1))


def set_size(shares: Shares, truth: Shares) -> dict[str, float]:
    """Return the mean size and the coverage of sets of classes that hold the true one with probability 0.9.

    Split conformal: a class is in the set if 1 - its share is at most the quantile of that of the true classes of
    validation queries.
    """
    kept = {name: values[truth[name] >= 0] for name, values in shares.items() if name in truth}
    true = {name: values[values >= 0][:, None] for name, values in truth.items()}
    gaps = 1 - kept["validation"].gather(1, true["validation"])[:, 0]
    rank = min(int(np.ceil(COVERAGE * (len(gaps) + 1))), len(gaps))
    inside = 1 - kept["test"] <= gaps.sort().values[rank - 1]
    coverage = inside.gather(1, true["test"]).double().mean()
    return {"size": float(inside.sum(1).double().mean()), "coverage": float(coverage)}


def all_votes(setting: Setting, gallery: Gallery, head: nn.Linear, lam: LAM) -> dict[str, Shares]:
    """Return the votes of every kind. All are tuned alike, by the likelihood of the validation queries' classes.

    "noise" draws weights around the head's with one variance for all, the likeliest of four; "five heads" are trained
    from other starts and batches; "both spaces" is the mean of the votes in features and embedding.
    """
    h = gallery.features
    generator = torch.Generator().manual_seed(setting.seed)
    scale = float(head.weight.square().mean().sqrt())
    fit_on = "training" if setting.zero_shot else "gallery"
    noisy = [
        [
            F.linear(
                h,
                head.weight + scale * share * torch.randn(head.weight.shape, generator=generator),
                head.bias,
            )
            for _ in range(SAMPLES)
        ]
        for share in NOISE
    ]
    heads = [head] + [
        trained_head(setting.h(fit_on), setting.labels(fit_on), 1000 * (setting.seed + 1) + number)
        for number in range(MEMBERS - 1)
    ]
    with torch.no_grad():
        result = {
            "features": gallery.best([[h]]),
            "embedding": gallery.best([[head(h)]]),
            "noise": gallery.best(noisy),
            "five heads": gallery.best([[member(h) for member in heads]]),
            "joint samples": gallery.best([[*lam.sample_embeddings(h, SAMPLES, generator=generator)]]),
        }
    both = {part: (result["features"][part] + result["embedding"][part]) / 2 for part in gallery.parts}
    return {name: both if name == "both spaces" else result[name] for name in VOTES}


def measured(setting: Setting) -> dict[str, Any]:
    """Return R, O and far of every score, the accuracy of each kind of answer, the size of its sets of answers.

    R, O and far are about the nearest item in the embedding. A vote's score is 1 - the share of that item's class.
    """
    head = linear(setting)
    fit_on = "training" if setting.zero_shot else "gallery"
    lam = fitted(head, setting.h(fit_on), setting.labels(fit_on))
    gallery = Gallery(setting)
    shares = all_votes(setting, gallery, head, lam)
    with torch.no_grad():
        nearest = gallery.nearest(head(gallery.features))
    doubts = {
        part: {
            f"vote, {name}": 1 - values[part].gather(1, nearest[part][:, None])[:, 0].double().numpy()
            for name, values in shares.items()
        }
        for part in gallery.parts
    }
    arrays = inputs(setting)
    without = scored_with(arrays, None, ALL)
    joined = {part: doubts[part]["vote, joint samples"][:, None] for part in gallery.parts}
    with_it = scored_with(arrays, joined, ALL, novel=0)
    scores: dict[str, dict[str, NDArray[Any]]] = {}
    for part in gallery.parts[1:]:
        e = lam.embed_features(torch.from_numpy(setting.h(part)))
        assert e.gaussians is not None
        prefix = f"{part}:score:"
        scores[part] = {
            **without.scores[part],
            "trust with joint samples": with_it.scores[part]["trust"],
            **{key[len(prefix) :]: values for key, values in arrays.items() if key.startswith(prefix)},
            **doubts[part],
            "1/kappa": -e.kappa.double().numpy(),
            "raw variance": e.gaussians.marginal_variance.double().mean(1).numpy(),
        }
    queries = Scored(arrays["test:right"], scores, None, np.zeros(0), 0.0)  # type: ignore[arg-type]
    summary = {score: measures(queries, score) for score in scores["test"]}
    truth = gallery.truth["test"]
    accuracy = {"nearest item": nearest["test"]}
    accuracy |= {f"vote, {name}": values["test"].argmax(1) for name, values in shares.items()}
    return {
        "scores": {
            name: {m: v for m, v in values.items() if m in MEASURES} for name, values in summary.items()
        },
        "accuracy": {name: float((chosen == truth).double().mean()) for name, chosen in accuracy.items()},
        "sets": {name: set_size(values, gallery.truth) for name, values in shares.items()},
    }
