"""Attacks at a reduced size, or at full size in the long form: every trial behaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack import attack
from tests.attack.attack import Count

SHORT: dict[str, Callable[[], Count]] = {
    "threads": lambda: attack.threads(4),
    "kills": lambda: attack.kills(2),
    "readers": lambda: attack.readers(40),
    "disk full": lambda: attack.disk_full((600,)),
    "malformed": lambda: attack.malformed(1),
    "models": lambda: attack.models(12),
    "faiss": lambda: attack.faiss_files(12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_every_trial_behaves(name: str, long_form: bool) -> None:
    count = (attack.FULL if long_form else SHORT)[name]()
    assert count.trials > 0
    assert count.good == count.trials, str(count)


def test_a_mixture_of_versions_would_be_seen(tmp_path: Path) -> None:
    target = tmp_path / "index"
    attack.writer(target, 1).wait(60)
    assert attack.check_index(target) == "whole"
    (target / "kappa.npy").write_bytes(b"")
    assert attack.check_index(target).startswith("Damaged")
