"""Attacks at a reduced size, or at full size in the long form: every trial behaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack import attack, damaged_files, malformed, processes
from tests.attack.counting import Count
from tests.manifests import redigest, version

SHORT: dict[str, Callable[[], Count]] = {
    "threads": lambda: processes.threads(4),
    "kills": lambda: processes.kills(2),
    "readers": lambda: processes.readers(40),
    "disk full": lambda: processes.disk_full((600,)),
    "malformed": lambda: malformed.malformed(1),
    "models": lambda: damaged_files.models(12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_every_trial_behaves(name: str, long_form: bool) -> None:
    count = (attack.FULL if long_form else SHORT)[name]()
    assert count.trials > 0
    assert count.good == count.trials, str(count)


def test_a_mixture_of_versions_would_be_seen(tmp_path: Path) -> None:
    targets = [tmp_path / "one", tmp_path / "other"]
    for writes, target in enumerate(targets, 1):
        processes.writer(target, writes).wait(60)
        assert processes.check_gallery(target) == "whole"
    one, other = (version(target) / "norms.npy" for target in targets)
    one.write_bytes(other.read_bytes())
    assert processes.check_gallery(targets[0]).startswith("ArtifactError")
    redigest(targets[0], "norms.npy")
    assert processes.check_gallery(targets[0]) != "whole"
