"""Attacks at a reduced size, or at full size in the long form: every trial behaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack import attack, damaged_files, malformed, processes
from tests.attack.counting import Count

SHORT: dict[str, Callable[[], Count]] = {
    "threads": lambda: processes.threads(4),
    "kills": lambda: processes.kills(2),
    "readers": lambda: processes.readers(40),
    "disk full": lambda: processes.disk_full((600,)),
    "malformed": lambda: malformed.malformed(1),
    "models": lambda: damaged_files.models(12),
    "faiss": lambda: damaged_files.faiss_files(12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_every_trial_behaves(name: str, long_form: bool) -> None:
    count = (attack.FULL if long_form else SHORT)[name]()
    assert count.trials > 0
    assert count.good == count.trials, str(count)


def test_a_mixture_of_versions_would_be_seen(tmp_path: Path) -> None:
    target = tmp_path / "index"
    processes.writer(target, 1).wait(60)
    assert processes.check_index(target) == "whole"
    (target / "kappa.npy").write_bytes(b"")
    assert processes.check_index(target).startswith("Damaged")
