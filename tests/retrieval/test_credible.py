"""Credible caps against the von Mises-Fisher distribution, order statistics, and populations of known coverage."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from laplacian_metric import vmf
from laplacian_metric.retrieval.credible import CredibleCaps, needed

Floats = NDArray[np.float64]
TRUE = np.array([20.0, 200.0, 2000.0])  # concentrations of the population's three kinds of queries
TOLD = {  # what is claimed of each
    "right": TRUE,
    "far too certain": TRUE * 1e4,
    "far too uncertain": TRUE / 1e4,
    "the wrong way round": TRUE[::-1],
    "nothing known": np.zeros(3),
    "ends": np.array([0.0, math.inf, 1e300]),
}


def draw(concentrations: Floats, count: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Angles that are half normal with the true concentration, and the kappas that are claimed."""
    kind = generator.integers(3, size=count)
    return np.abs(generator.normal(size=count)) / np.sqrt(TRUE[kind]), concentrations[kind]


def coverage(caps: CredibleCaps, concentrations: Floats) -> float:
    """The share of the whole population whose angle is inside."""
    return float(scipy.special.erf(caps.radius(concentrations) * np.sqrt(TRUE / 2)).mean())


@pytest.mark.statistical
@pytest.mark.parametrize("concentrations", TOLD.values(), ids=TOLD.keys())
def test_caps_cover_as_promised_on_average_whatever_kappa_is_worth(concentrations: Floats) -> None:
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(250):
        angle, kappa = draw(concentrations, 99, generator)
        shares.append(coverage(CredibleCaps.calibrate(angle, kappa, 16, level=0.9), concentrations))
    # The 90th of 99 covers 0.9 on average, with a standard deviation of 0.03.
    assert np.mean(shares) == pytest.approx(0.9, abs=4 * 0.03 / math.sqrt(250))


@pytest.mark.statistical
@pytest.mark.parametrize("concentrations", TOLD.values(), ids=TOLD.keys())
def test_caps_cover_as_promised_for_all_but_delta_of_the_calibration_sets(concentrations: Floats) -> None:
    generator = np.random.default_rng(1)
    short = {None: 0, 0.1: 0}
    for _ in range(250):
        angle, kappa = draw(concentrations, 120, generator)
        for delta in short:
            caps = CredibleCaps.calibrate(angle, kappa, 16, level=0.9, delta=delta)
            short[delta] += coverage(caps, concentrations) < 0.9

    def least_share(count: int) -> float:  # Clopper and Pearson, but for one time in a thousand
        return float(scipy.stats.beta.ppf(0.001, count, 251 - count)) if count else 0.0

    assert least_share(short[0.1]) <= 0.1
    assert short[0.1] > 2, "the promise is kept by promising far too little"
    assert least_share(short[None]) > 0.1, "the other promise is not this one"


@pytest.mark.statistical
def test_a_true_kappa_needs_no_stretch() -> None:
    generator = torch.Generator().manual_seed(0)
    kappa = torch.logspace(0, 4, 4000, dtype=torch.float64)
    mean = torch.nn.functional.one_hot(torch.zeros(4000, dtype=torch.long), 8).double()
    points = vmf.sample(mean, kappa, 1, generator=generator)[0]
    angle = torch.atan2(points[:, 1:].norm(dim=1), points[:, 0]).numpy()
    # The quantile of 4000 angles is at 0.9 +- 0.005, where the radius grows by about 3 % per percent.
    assert CredibleCaps.calibrate(angle, kappa.numpy(), 8).stretch == pytest.approx(1, abs=0.04)
    assert CredibleCaps.calibrate(angle, 4 * kappa.numpy(), 8).stretch > 1.5
    assert CredibleCaps.calibrate(angle, kappa.numpy() / 4, 8).stretch < 0.75


@pytest.mark.parametrize("dim", [2, 3, 16, 128, 2048])
@pytest.mark.parametrize(("level", "error"), [(0.5, 0.003), (0.9, 0.003), (0.999, 0.01)])
def test_the_table_is_accurate(dim: int, level: float, error: float) -> None:
    caps = CredibleCaps.calibrate(np.ones(1000), np.ones(1000), dim, level=level)
    generator = np.random.default_rng(dim)
    kappa = np.exp(generator.uniform(math.log(0.01 * math.sqrt(dim)), math.log(1e6 * dim), 500))
    nominal = caps.radius(kappa) / caps.stretch
    exact = vmf.cap_quantile(torch.from_numpy(kappa), dim, level).numpy()
    inside = caps.radius(kappa) < math.pi
    assert inside.sum() > 300
    np.testing.assert_allclose(nominal[inside], exact[inside], rtol=error)
    uniform = float(vmf.cap_quantile(torch.zeros(1, dtype=torch.float64), dim, level))
    assert caps.nominal[0] == pytest.approx(uniform, rel=0.01)


def test_uncertain_queries_get_larger_sets() -> None:
    generator = np.random.default_rng(2)
    angle, kappa = draw(TRUE, 500, generator)
    caps = CredibleCaps.calibrate(angle, kappa, 3)
    grid = np.geomspace(1, 1e5, 200)
    assert (np.diff(caps.radius(grid)) < 0).all()
    items = generator.normal(size=(5000, 3))
    angles = np.arccos(items[:, 0] / np.linalg.norm(items, axis=1))
    sizes = [int(caps.contains(angles, k).sum()) for k in (3000.0, 300.0, 30.0, 3.0)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3]


def test_nothing_and_all_is_known_at_the_ends() -> None:
    caps = CredibleCaps.calibrate(np.full(20, 0.5), np.full(20, 10.0), 4)
    zero, tiny, huge, infinite = caps.radius([0.0, 5e-324, 1e300, math.inf])
    assert zero == tiny == min(math.pi, caps.stretch * caps.nominal[0] * (1 + 1e-15))
    assert 0 < huge == infinite < 0.001
    assert CredibleCaps.calibrate(np.full(20, 3.0), np.full(20, 1e6), 4).radius([1.0]) == [math.pi]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(30, 200),
    level=st.sampled_from([0.5, 0.75, 0.9]),
    delta=st.sampled_from([None, 0.1, 0.05]),
)
def test_the_stretch_covers_exactly_as_many_as_it_should(
    seed: int, count: int, level: float, delta: float | None
) -> None:
    generator = np.random.default_rng(seed)
    angle = generator.uniform(0, math.pi, count)
    kappa = generator.choice([0.0, 1.0, 10.0, 1e3, math.inf], count)
    caps = CredibleCaps.calibrate(angle, kappa, 5, level=level, delta=delta)
    if delta is None:
        rank = math.ceil((count + 1) * Fraction(str(level)))
    else:
        rank = next(k for k in range(1, count + 1) if scipy.stats.beta.cdf(level, k, count + 1 - k) <= delta)
    # Whatever is at pi or beyond it is inside too.
    assert caps.contains(angle, kappa).sum() == rank or caps.radius(kappa).max() == math.pi
    scores = np.sort(angle / (CredibleCaps(5, level, delta, 1.0, 1, caps.nominal).radius(kappa)))
    assert caps.stretch == pytest.approx(scores[rank - 1], rel=1e-12)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("delta", [None, 0.5, 0.1, 0.001])
def test_so_many_queries_are_needed(level: float, delta: float | None) -> None:
    least = needed(level, delta)
    if delta is None:
        assert least == next(n for n in range(1, 1000) if (n + 1) * Fraction(str(level)) <= n)
    else:
        assert least == next(n for n in range(1, 1000) if level**n <= delta)
    angle = np.linspace(0.1, 1, least)
    caps = CredibleCaps.calibrate(angle, np.ones(least), 3, level=level, delta=delta)
    assert caps.contains(angle, np.ones(least)).all()
    with pytest.raises(ValueError, match=rf"^{least - 1} calibration .* at least {least} are needed"):
        CredibleCaps.calibrate(angle[1:], np.ones(least - 1), 3, level=level, delta=delta)


def test_queries_without_an_item_of_their_class_count_as_not_covered() -> None:
    angle, kappa = np.linspace(0.01, 1, 100), np.full(100, 10.0)
    angle[:8] = math.inf
    caps = CredibleCaps.calibrate(angle, kappa, 3, level=0.9)
    assert caps.contains(angle, kappa).sum() == 91
    assert not caps.contains(math.inf, 0.0)
    angle[:20] = math.inf
    with pytest.raises(
        ValueError, match=r"^20 of 100 calibration queries \(20.0%\) have no item of their class"
    ):
        CredibleCaps.calibrate(angle, kappa, 3, level=0.9)


def test_right_items_in_the_same_place_need_no_cap() -> None:
    caps = CredibleCaps.calibrate(np.zeros(20), np.ones(20), 3)
    assert caps.stretch == 0
    assert caps.contains([0.0, 1e-9], 1.0).tolist() == [True, False]


def test_single_precision_of_pi_is_an_angle() -> None:
    """float32's pi is larger than pi."""
    opposite = np.full(20, math.pi, np.float32)
    caps = CredibleCaps.calibrate(opposite, np.ones(20, np.float32), 3)
    assert caps.contains(opposite, 1.0).all()


def test_queries_need_no_torch() -> None:
    angle, kappa = draw(TRUE, 100, np.random.default_rng(3))
    caps = CredibleCaps.calibrate(angle, kappa, 16, level=0.9, delta=0.1)
    stored = json.dumps(caps.to_dict(), allow_nan=False)
    assert len(stored) < 4000
    assert CredibleCaps.from_dict(json.loads(stored)) == caps
    program = (
        "import json, sys; from laplacian_metric.retrieval.credible import CredibleCaps; "
        "caps = CredibleCaps.from_dict(json.loads(sys.argv[1])); "
        "print(json.dumps([caps.radius([0.0, 7.0]).tolist(), 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program, stored], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [caps.radius([0.0, 7.0]).tolist(), False]


def test_shapes_broadcast() -> None:
    caps = CredibleCaps.calibrate(np.full(20, 0.5), np.full(20, 10.0), 4)
    assert caps.radius(np.ones((2, 3))).shape == (2, 3)
    assert caps.contains(np.ones((5, 7)), np.ones((5, 1))).shape == (5, 7)
    assert caps.radius([]).shape == (0,)


@pytest.mark.parametrize(
    ("angle", "kappa", "options", "message"),
    [
        ([math.nan], [1.0], {}, "angle_to_right has the value nan: angles are in radians"),
        ([-0.1], [1.0], {}, "angle_to_right has the value -0.1"),
        ([90.0], [1.0], {}, "angle_to_right has the value 90: angles are in radians"),
        ([0.1], [-1.0], {}, "kappa has the value -1: concentrations"),
        ([0.1], [math.nan], {}, "kappa has the value nan"),
        ([0.1, 0.2], [1.0], {}, r"angle_to_right has shape \(2,\) and kappa \(1,\)"),
        ([[0.1]], [[1.0]], {}, r"angle_to_right has shape \(1, 1\)"),
        ([], [], {}, "0 calibration queries are too few to promise 0.9: at least 9"),
        ([], [], {"delta": 0.1}, "too few to promise 0.9 with probability 0.9: at least 22"),
        ([0.1], [1.0], {"level": 1.0}, "level is 1.0: it is a share"),
        ([0.1], [1.0], {"delta": 0.0}, "delta is 0.0"),
        ([0.1] * 9, [1.0] * 9, {"dim": 1}, "dim is 1, at least 2"),
    ],
)
def test_errors_name_what_is_wrong(
    angle: list[float], kappa: list[float], options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CredibleCaps.calibrate(angle, kappa, **{"dim": 3, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stretch": math.inf}, "stretch is inf"),
        ({"nominal": [1.0]}, "at least two"),
        ({"nominal": [1.0, -1.0]}, "angles above 0"),
    ],
)
def test_caps_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    stored = CredibleCaps.calibrate(np.full(20, 0.5), np.full(20, 10.0), 4).to_dict()
    with pytest.raises(ValueError, match=message):
        CredibleCaps.from_dict(stored | change)
