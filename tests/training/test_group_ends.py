"""After a training in several processes the process group can end: none of its threads is left to abort the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

PROGRAM = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from hessians import ContrastiveLoss
from laplacian_metric import Encoder
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Setup
from laplacian_metric.methods import make
from laplacian_metric.training import TrainingOptions, pair_choice, train


def threads():
    names = (path.read_text() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("pt_gloo") for name in names)


work, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{work / 'meeting'}", rank=rank, world_size=2)
torch.set_num_threads(1)
torch.manual_seed(0)
images = Dataset(torch.randn(40, 6), torch.arange(40) % 4)
options = TrainingOptions(epochs=1, batch_size=10)
encoder = Encoder(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
learner = make("deterministic").learner([encoder], Setup(ContrastiveLoss(0.7), 40, pairs=pair_choice(options)))
train(learner, images, images, options, work / "run")
during = threads()
dist.destroy_process_group()
(work / f"threads{rank}").write_text(f"{during} {threads()}")
"""


@pytest.mark.skipif(
    not (Path("/proc/self/task").is_dir() and dist.is_available() and dist.is_gloo_available()),
    reason="this needs gloo, and Linux's list of threads",
)
def test_no_thread_of_the_group_outlives_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    running = [
        subprocess.Popen(
            [sys.executable, "program.py", str(tmp_path), str(rank)],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], errors
    for rank in range(2):
        during, after = map(int, (tmp_path / f"threads{rank}").read_text(encoding="utf-8").split())
        assert during > 0
        assert after == 0
