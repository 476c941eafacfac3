"""Which images make up the batches of an epoch: known from the seed and the epoch alone, so that it can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from laplacian_metric.data.randomness import permutation
from laplacian_metric.training.options import Sampling, TrainingOptions
from laplacian_metric.training.pair_streams import balanced_pairs


def epoch_batches(
    labels: Tensor, options: TrainingOptions, seed: int, epoch: int, process: int = 0, processes: int = 1
) -> list[Tensor]:
    """The positions of the images of every batch of this process.

    Batches are dealt out to the processes in turn; what is left over of a round is left out, so that every process
    takes as many steps. A last batch of a single image, which has no pair, is left out too.

    Example:
        >>> [len(rows) for rows in epoch_batches(torch.zeros(9), TrainingOptions(batch_size=4), seed=0, epoch=0)]
        [4, 4]
    """
    if options.sampling is Sampling.BALANCED:
        order = _balanced(labels, options, seed, epoch)
    elif options.sampling is Sampling.PAIRS:
        order = _pairs(labels, options, seed, epoch)
    else:
        order = torch.from_numpy(permutation((seed, epoch), len(labels)))
    size = options.batch_size * (2 if options.sampling is Sampling.PAIRS else 1)
    batches = [rows for rows in order.split(size) if len(rows) > 1]
    rounds = len(batches) // processes
    if not rounds:
        raise ValueError(
            f"{len(labels)} images make {len(batches)} batches of at most {options.batch_size}, which is none for each "
            f"of {processes} processes: use more images or a smaller batch_size"
        )
    return batches[process : rounds * processes : processes] if processes > 1 else batches


def _pairs(labels: Tensor, options: TrainingOptions, seed: int, epoch: int) -> Tensor:
    """Positions one batch after the other, the images of a pair side by side; half of every batch's pairs match."""
    steps = options.steps_per_epoch or max(1, len(labels) // (2 * options.batch_size))
    drawn = balanced_pairs(labels, steps * options.batch_size, (seed, epoch))
    # Of both halves, those that match and those that do not, every batch gets as many.
    return drawn.view(2, steps, options.batch_size // 2, 2).transpose(0, 1).flatten()


def _balanced(labels: Tensor, options: TrainingOptions, seed: int, epoch: int) -> Tensor:
    """Positions one batch after the other, by the sampler of pytorch-metric-learning."""
    from pytorch_metric_learning.samplers import MPerClassSampler

    classes = len(torch.unique(labels))
    wanted = options.batch_size // options.images_per_class
    if classes < wanted:
        raise ValueError(
            f"a balanced batch of {options.batch_size} images, {options.images_per_class} of a class, needs {wanted} "
            f"classes, and there are {classes}: raise images_per_class or lower batch_size"
        )
    length = max(len(labels), options.batch_size)
    with _numpy_of_the_sampler(seed, epoch):
        sampler = MPerClassSampler(labels.cpu(), options.images_per_class, options.batch_size, length)
        return torch.tensor(list(sampler), dtype=torch.long)


@contextmanager
def _numpy_of_the_sampler(seed: int, epoch: int) -> Iterator[None]:
    """The library draws from numpy's global state; inside it draws from one of ours."""
    from pytorch_metric_learning.utils import common_functions

    before = common_functions.NUMPY_RANDOM
    common_functions.NUMPY_RANDOM = np.random.RandomState([seed % 2**32, epoch])
    try:
        yield
    finally:
        common_functions.NUMPY_RANDOM = before
