"""Makes the tables that the von Mises-Fisher functions are compared with, with 40 digits by mpmath.

    python -m tests.vmf.make_tables

Nothing here is shared with the package: Bessel functions are mpmath's, and the direction of a Gaussian vector is the
integral over s of (2/sqrt(pi)) E[u exp(-s^2 |u|^2)] as it stands, by the trapezoidal rule in log s.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from mpmath import mp, mpf

FOLDER = Path(__file__).resolve().parent
DIMS = (2, 3, 4, 16, 128, 512, 2048)
KAPPAS = ("0.001", "0.01", "0.1", "1", "3", "10", "30", "100", "300", "1000", "10000", "100000", "1000000")
DIGITS = 40


def normalizer_row(dim: int, kappa: str) -> dict[str, Any]:
    """log C, g = log C(k) - log C(0), A, 1 - A, dA/dk and the entropy."""
    nu, k = mpf(dim) / 2 - 1, mpf(kappa)
    below, above = mp.besseli(nu, k), mp.besseli(nu + 1, k)
    length = above / below
    log_c = nu * mp.log(k) - mpf(dim) / 2 * mp.log(2 * mp.pi) - mp.log(below)
    log_c0 = mp.loggamma(mpf(dim) / 2) - mp.log(2) - mpf(dim) / 2 * mp.log(mp.pi)
    values = {
        "log_normalizer": log_c,
        "relative": log_c - log_c0,
        "scaled": log_c - log_c0 + k,
        "length": length,
        "gap": 1 - length,
        "slope": 1 - length**2 - (dim - 1) * length / k,
        "entropy": -log_c - k * length,
    }
    return {"dim": dim, "kappa": kappa} | {name: mp.nstr(value, DIGITS) for name, value in values.items()}


def projected_row(name: str, mean: list[float], variance: list[float]) -> dict[str, Any]:
    """E u/|u| of u ~ N(mean, diag variance), its length R and 1 - R^2."""
    m, v = [mpf(x) for x in mean], [mpf(x) for x in variance]
    c = sum(x * x for x in m) + sum(v)
    step = mpf(1) / 12
    total = [mpf(0)] * len(m)
    for i in range(-95 * 12, 45 * 12):
        s = mp.exp(i * step)
        t = s * s / c
        b = [1 / (1 + 2 * t * x) for x in v]
        log_value = -t * sum(x * x * y for x, y in zip(m, b, strict=True)) + sum(mp.log(y) for y in b) / 2
        weight = step * s * mp.exp(log_value) * 2 / mp.sqrt(mp.pi * c)
        total = [x + weight * y * z for x, y, z in zip(total, b, m, strict=True)]
    squared = sum(x * x for x in total)
    length = mp.sqrt(squared)
    return {
        "name": name,
        "mean": mean,
        "variance": variance,
        "length": mp.nstr(length, DIGITS),
        "spread": mp.nstr(1 - squared, DIGITS),
        "direction": [mp.nstr(x / length, 20) for x in total],
    }


def projected_cases() -> list[tuple[str, list[float], list[float]]]:
    """Small and large variances, equal ones, zeros, one that exceeds all others, and means next to nothing."""
    source = random.Random(0)

    def gaussians(dim: int) -> list[float]:
        return [round(source.gauss(0, 1), 6) for _ in range(dim)]

    def variances(dim: int, scale: float) -> list[float]:
        return [float(f"{scale * source.uniform(0.05, 1):.6g}") for _ in range(dim)]

    cases = []
    for dim in (2, 3, 5, 16, 64):
        for scale in (1e-12, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4):
            cases.append((f"variance {scale:g}", gaussians(dim), variances(dim, scale)))
    for dim in (2, 3, 16):
        for scale in (1e-4, 1.0, 100.0):
            cases.append(("equal", gaussians(dim), [scale] * dim))
            cases.append(("zeros", gaussians(dim), [0.0, *variances(dim - 1, scale)]))
            cases.append(("dominated", gaussians(dim), [1e4 * scale, *variances(dim - 1, scale)]))
            cases.append(
                ("along the mean", [1.0] + [0.0] * (dim - 1), [scale, *variances(dim - 1, 1e-3 * scale)])
            )
    return cases


def write(name: str, rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row) for row in rows)
    (FOLDER / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main() -> None:
    mp.dps = 2 * DIGITS
    write("normalizer.json", [normalizer_row(dim, kappa) for dim in DIMS for kappa in KAPPAS])
    write("projected.json", [projected_row(*case) for case in projected_cases()])


if __name__ == "__main__":
    main()
