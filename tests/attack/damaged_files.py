"""Damaged model folders and FAISS files."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from laplacian_metric.laplace.model_folder import ModelFolder
from tests.attack.counting import FORMATS, SECONDS, Count, TimeUp, damaged, time_limit


def models(trials: int) -> Count:
    """Byte flips in a model folder: refused by name, or of a byte that nobody reads."""
    count = Count("damaged model folders")
    generator = np.random.default_rng(1)
    expected = ModelFolder.load(FORMATS / "models" / "features")
    x = torch.eye(5)
    with tempfile.TemporaryDirectory() as place:
        for trial in range(trials):
            copy = Path(shutil.copytree(FORMATS / "models" / "features", Path(place) / f"m{trial}"))
            path = sorted(copy.iterdir())[trial % 4]
            path.write_bytes(damaged(path.read_bytes(), generator))
            try:
                same = torch.equal(ModelFolder.load(copy).lam.embed(x).kappa, expected.lam.embed(x).kappa)
                count.add(f"{path.name} {trial}", "read" if same else "silently another", same)
            except (ValueError, OSError) as error:
                count.add(f"{path.name} {trial}", "refused", bool(str(error)))
            except Exception as error:
                count.add(f"{path.name} {trial}", f"{type(error).__name__}: {error}", False)
    return count


SEARCHER = """
import sys
import numpy as np
from laplacian_metric import retrieval
for line in sys.stdin:
    try:
        index = retrieval.load(line.strip())
        answers = index.query(index.items, k=3)
        rows = np.asarray(answers.ids)
        known = set(index.ids.tolist()) | {-1}
        print("read" if set(rows.ravel().tolist()) <= known else "answers that are no items", flush=True)
    except (ValueError, OSError, MemoryError) as error:
        print("refused" if str(error) else repr(error), flush=True)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


def faiss_files(trials: int) -> Count:
    """Altered FAISS files whose digest was computed again: refused, or searched, in another process."""
    count = Count("altered FAISS files with a recomputed digest")
    generator = np.random.default_rng(2)
    searcher: subprocess.Popen[str] | None = None
    with tempfile.TemporaryDirectory() as place:
        for trial in range(trials):
            kind = ("hnsw", "ivf")[trial % 2]
            copy = Path(shutil.copytree(FORMATS / "index" / kind, Path(place) / f"{kind}-{trial}"))
            content = damaged((copy / "index.faiss").read_bytes(), generator, (0, 0, 0, 1, 2))
            (copy / "index.faiss").write_bytes(content)
            manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
            manifest.pop("digest")
            entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            manifest["files"]["index.faiss"] = entry
            manifest["digest"] = digest_of_dict(manifest)
            (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
            if searcher is None or searcher.poll() is not None:
                searcher = subprocess.Popen(
                    [sys.executable, "-c", SEARCHER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    cwd=Path(__file__).parents[2],
                )
            assert searcher.stdin is not None
            assert searcher.stdout is not None
            searcher.stdin.write(f"{copy}\n")
            searcher.stdin.flush()
            try:
                with time_limit(SECONDS):
                    end = searcher.stdout.readline().strip()
            except TimeUp:
                searcher.kill()
                end = "hangs"
            end = end or f"ended by signal {-searcher.wait()}"
            count.add(f"{kind} {trial}", end, end in ("read", "refused"))
            shutil.rmtree(copy)
        if searcher is not None:
            searcher.kill()
            searcher.wait()
    return count
