"""Bad input is refused where it is handed in, by a message that names it and says what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from laplacian_metric import vmf
from laplacian_metric.vmf import nivmf

mean, kappa = torch.eye(3)[:2], torch.tensor([1.0, 2.0])
nan, inf = float("nan"), float("inf")
x, centres, zeros = torch.eye(3)[:2], torch.eye(3), torch.zeros(3, 3)
one, k = torch.tensor([0.5]), torch.tensor([4.0])


def third_derivative() -> Any:
    at = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(vmf.mean_resultant_length(at, 3).sum(), at, create_graph=True)
    return torch.autograd.grad(first.sum(), at)


def streamed(*draws: torch.Tensor) -> Any:
    stream = vmf.StreamedFit()
    for draw in draws:
        stream.add(draw)
    return stream.fit()


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: vmf.log_normalizer(torch.tensor([1.0, -2.0]), 3),
        ValueError,
        r"kappa has the value -2 at index 1",
    ),
    (
        lambda: vmf.entropy(torch.tensor([[1.0], [nan]]), 3),
        ValueError,
        r"kappa has the value nan at index \(1, 0\)",
    ),
    (lambda: vmf.log_normalizer(torch.tensor(float("inf")), 3), ValueError, "kappa has the value inf: conc"),
    (lambda: vmf.log_normalizer(torch.tensor([1, 2]), 3), TypeError, r"kappa has dtype torch.int64"),
    (lambda: vmf.log_normalizer(3.0, 3), TypeError, "kappa is a float, a torch.Tensor is needed"),
    (lambda: vmf.log_normalizer(kappa, 1), ValueError, "dim is 1, at least 2 is needed"),
    (lambda: vmf.cap_quantile(kappa, 2.0, 0.5), TypeError, "dim is a float"),
    (
        lambda: vmf.cap_quantile(kappa, 3, 1.5),
        ValueError,
        "probability has the value 1.5: probabilities are from 0",
    ),
    (
        lambda: vmf.cap_quantile(kappa, 3, torch.ones(3)),
        ValueError,
        r"kappa has shape \(2,\), probability has",
    ),
    (
        lambda: vmf.cap_probability(kappa, 3, 90.0),
        ValueError,
        "angle has the value 90: angles are in radians",
    ),
    (lambda: vmf.concentration(None, 3), ValueError, "neither length nor variance is given"),
    (lambda: vmf.concentration(torch.tensor([1.1]), 3), ValueError, "length has the value 1.1 at index 0"),
    (lambda: vmf.concentration(torch.ones(2), 0), ValueError, "dim is 0"),
    (
        lambda: vmf.sample(2 * mean, kappa, 1),
        ValueError,
        r"mean has 2 vectors .* \[0\], has length 2: use torch",
    ),
    (lambda: vmf.sample(mean * nan, kappa, 1), ValueError, "mean has 2 vectors that are not of length 1"),
    (lambda: vmf.sample(mean, -kappa, 1), ValueError, "kappa has the value -1 at index 0"),
    (lambda: vmf.sample(mean, kappa[:1], 1), ValueError, r"mean has shape \(2, 3\) and kappa \(1,\)"),
    (lambda: vmf.sample(mean, torch.ones(5), 1), ValueError, "do not broadcast, one concentration for each"),
    (lambda: vmf.sample(mean, kappa, -1), ValueError, "k is -1, the number of samples is needed"),
    (
        lambda: vmf.sample(torch.ones(2, 1), kappa, 1),
        ValueError,
        r"mean has shape \(2, 1\), unit vectors of at",
    ),
    (lambda: vmf.fit(mean), ValueError, r"samples has shape \(2, 3\), a tensor \(S, N, D\) is needed"),
    (lambda: vmf.fit(mean[None]), ValueError, "samples has 1 draws for each image, at least 2 are needed"),
    (
        lambda: vmf.fit(torch.ones(4, 2, 3)),
        ValueError,
        r"samples has 8 vectors .* \[0, 0\], has length 1.73205",
    ),
    (lambda: vmf.fit([mean, mean]), ValueError, "samples has type list"),
    (lambda: vmf.log_density(mean, mean[:, :2], kappa), ValueError, "mean has 1 vectors|dimensions differ"),
    (lambda: vmf.kl(mean, kappa, torch.eye(4)[:2], kappa), ValueError, "mean_p has 3, mean_q has 4"),
    (lambda: vmf.kl(mean, kappa, mean, -kappa), ValueError, "kappa_q has the value -1 at index 0"),
    (
        lambda: vmf.bhattacharyya(mean, kappa, torch.eye(3), torch.ones(3)),
        ValueError,
        r"kappa_q has shape \(3,\)",
    ),
    (lambda: vmf.projected_normal(mean[0], mean[0]), ValueError, r"mean has shape \(3,\), two dimensions"),
    (lambda: vmf.projected_normal(torch.ones(2, 1), torch.ones(2, 1)), ValueError, "at least 2 dimensions"),
    (
        lambda: vmf.projected_normal(mean * nan, mean),
        ValueError,
        "mean has NaN or infinite entries in 2 of 2",
    ),
    (lambda: vmf.projected_normal(mean, -mean), ValueError, r"variance has the value -1 at index \(0, 0\)"),
    (
        lambda: vmf.projected_normal(mean, kappa),
        ValueError,
        r"variance has shape \(2,\), for this mean it must be",
    ),
    (
        lambda: vmf.projected_normal(mean, mean, mean),
        ValueError,
        r"factor has shape \(2, 3\), \(2, 3, r\) is",
    ),
    (
        lambda: vmf.projected_normal(mean, -torch.eye(3).expand(2, 3, 3)),
        ValueError,
        "not positive semi-definite",
    ),
    (
        lambda: vmf.projected_normal(mean, torch.ones(3, 3).triu().expand(2, 3, 3)),
        ValueError,
        "variance is not symmetric for 2 of 2 images, the first is image 0",
    ),
    (third_derivative, NotImplementedError, "second derivative"),
    (lambda: streamed(), ValueError, "0 draws"),
    (lambda: streamed(x), ValueError, "1 draws"),
    (lambda: streamed(centres, x), ValueError, "samples"),
    (lambda: streamed(centres, nan * centres), ValueError, "samples"),
    (lambda: streamed(centres, torch.ones(3)), ValueError, "samples"),
    (lambda: nivmf.log_density(2 * x, centres, zeros), ValueError, "x"),
    (lambda: nivmf.log_density(x[0], centres, zeros), ValueError, "x"),
    (lambda: nivmf.log_density(x, 2 * centres, zeros), ValueError, "mean"),
    (lambda: nivmf.log_density(x, centres, zeros[:2]), ValueError, "log_scale"),
    (lambda: nivmf.log_density(x, centres, zeros + nan), ValueError, "log_scale"),
    (lambda: nivmf.log_density(x, centres, zeros + 1000), ValueError, "log_scale"),
    (lambda: nivmf.log_density(x, centres, zeros + 50 * centres), ValueError, "log_scale"),
    (lambda: nivmf.log_density(torch.eye(4), centres, zeros), ValueError, "dim"),
    (
        lambda: nivmf.log_density(one / one[:, None], one / one[:, None], zeros[:1, :1]),
        ValueError,
        "at least 2",
    ),
    (lambda: vmf.log_positivity(one, -k, k, 1.0, 3), ValueError, "kappa1"),
    (lambda: vmf.log_positivity(one, k, 0 * k, 1.0, 3), ValueError, "kappa2"),
    (lambda: vmf.log_positivity(one, k, k, inf, 3), ValueError, "kappa_pos"),
    (lambda: vmf.log_positivity(one, k * nan, k, 1.0, 3), ValueError, "kappa1"),
    (lambda: vmf.log_positivity(one, k, k, 1.0, 1), ValueError, "dim is 1"),
    (lambda: vmf.log_positivity(1.1 + 0 * one, k, k, 1.0, 3), ValueError, "cosine"),
    (lambda: vmf.log_positivity(one, torch.ones(2), torch.ones(3), 1.0, 3), ValueError, "broadcast"),
    (lambda: vmf.log_positivity(one, 1e9 * k, 1e9 * k, 1e9, 3), ValueError, "log_positivity_matched"),
]


@pytest.mark.parametrize(("run", "error", "message"), REFUSED)
def test_refused(run: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run()
