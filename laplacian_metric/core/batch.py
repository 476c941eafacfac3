"""What one step sees of a data set, and the one pass through a loader for everything that is read of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from laplacian_metric.core.labels import as_labels
from laplacian_metric.core.modes import evaluating
from laplacian_metric.core.progress import track

R = TypeVar("R")
# What batches are read of: something that yields them, or a data set of this library.
Loader = Iterable[Any] | TorchDataset[Any]


@dataclass(frozen=True, eq=False)
class Batch:
    """The inputs that one step sees, with what is known about each.

    Attributes:
        inputs: a tensor (B, ...), or a tuple or dictionary of what the network takes.
        labels: (B,) whole numbers, or None.
        ids: one for each input, or None.
        views: further augmented copies of the same inputs.

    Example:
        >>> Batch(torch.zeros(2, 3), torch.tensor([4, 5])).labels
        tensor([4, 5])
        >>> len(Batch({"words": torch.zeros(4, 7), "scale": 2.0}))
        4
    """

    inputs: Any
    labels: Tensor | None = None
    ids: Sequence[Hashable] | None = None
    views: tuple[Any, ...] = ()

    def __len__(self) -> int:
        """How many inputs there are: the length of the first tensor among them."""
        inputs = tuple(self.inputs.values()) if isinstance(self.inputs, Mapping) else self.inputs
        if isinstance(inputs, tuple):
            inputs = next((part for part in inputs if isinstance(part, Tensor)), inputs[0])
        return len(inputs)

    def to(self, module: nn.Module) -> Batch:
        """Return the batch with its inputs and views on a module's device; labels stay where they are."""
        views = tuple(to_device(view, module) for view in self.views)
        return replace(self, inputs=to_device(self.inputs, module), views=views)


def as_batch(item: Any, number: int = 0, *, labelled: bool = False) -> Batch:
    """Return what a loader yields as a `Batch`.

    Args:
        item: inputs, (inputs, labels), a dictionary of inputs, which may have "labels" among them, or a `Batch`.
        number: of the batch in its loader, for errors.
        labelled: whether labels are needed. Where not, whatever follows the inputs is left aside.

    Example:
        >>> as_batch([torch.zeros(2, 3), ["ant", "bee"]], labelled=True).labels.shape
        torch.Size([2])
        >>> as_batch({"ids": torch.zeros(2, 3), "labels": torch.tensor([0, 1])}, labelled=True).inputs.keys()
        dict_keys(['ids'])
    """
    if isinstance(item, Batch):
        batch = item
    elif isinstance(item, Mapping):
        inputs = {name: value for name, value in item.items() if name != "labels"}
        batch = Batch(inputs, item.get("labels"))
    elif isinstance(item, (tuple, list)):
        if not len(item) or (labelled and len(item) != 2):
            raise _no_pair(item, number)
        batch = Batch(item[0], item[1] if labelled else None)
    else:
        batch = Batch(item)
    if not labelled:
        return replace(batch, labels=None)
    labels: Any = batch.labels
    if labels is None:
        raise _no_pair(item, number)
    if isinstance(labels, str) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0:
        raise TypeError(
            f"entry {number} of the loader has a single label, so it is an image and no batch: for a data set pass "
            "torch.utils.data.DataLoader(it, batch_size=...)"
        )
    if not isinstance(batch.inputs, (Tensor, np.ndarray, Mapping, tuple, list)):
        raise TypeError(
            f"the inputs of batch {number} of the loader are a {type(batch.inputs).__name__}: make a tensor of it, as "
            "with torch.as_tensor"
        )
    if len(batch) != len(labels):
        raise ValueError(
            f"batch {number} of the loader has {len(labels)} labels for {len(batch)} images: one for each is needed"
        )
    try:
        return replace(batch, labels=as_labels(f"batch {number} of the loader: labels", labels))
    except ValueError as error:  # of another shape: what a loader yields is of the wrong kind
        raise TypeError(str(error)) from None


def _no_pair(item: Any, number: int) -> TypeError:
    what = f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, (tuple, list)) else "")
    return TypeError(
        f"batch {number} of the loader is {what}: a loader that yields (inputs, labels) is needed, since the "
        "labels say which images are pairs; ((x, y) for x, y, *_ in loader) takes the first two of more"
    )


def is_single(data: Any) -> bool:
    """Whether data are the inputs of one batch, rather than a loader or a data set.

    Example:
        >>> is_single(torch.zeros(2, 3)), is_single([torch.zeros(2, 3)])
        (True, False)
    """
    return isinstance(data, (Tensor, np.ndarray, tuple, Mapping, Batch))


def read(
    data: Any, title: str = "batches", *, labelled: bool = False, progress: bool | None = False
) -> Iterator[Batch]:
    """Yield the batches of the inputs of one batch, of a data set of this library, or of a loader.

    Args:
        data: what is read; without a single batch it is refused.
        title: of the progress bar.
        labelled: whether every batch needs labels.
        progress: whether to show a bar; None asks the terminal.
    """
    if is_single(data) and not labelled:
        yield data if isinstance(data, Batch) else Batch(data)
        return
    images, total = 0, data.num_batches if _is_dataset(data) else None
    batches = track(loader_of(data, labelled=labelled), title, total=total, show=progress)
    for number, item in enumerate(batches):
        batch = as_batch(item, number, labelled=labelled)
        images += len(batch) if labelled else 1
        yield batch
    if not images:
        raise ValueError("the loader is empty: there is no image in it")


def loader_of(data: Any, *, labelled: bool = True) -> Iterable[Any]:
    """Return what yields the batches of a loader or a data set; what is neither is refused.

    Example:
        >>> loader_of((torch.zeros(2, 3), torch.zeros(2)))
        Traceback (most recent call last):
        ...
        TypeError: two tensors are no loader: for images and labels that fit into one batch pass [(images, labels)]
    """
    if _is_dataset(data):
        batches: Iterable[Any] = data.batches()
        return batches
    pair = isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(x, Tensor) for x in data)
    if labelled and pair:
        raise TypeError(
            "two tensors are no loader: for images and labels that fit into one batch pass [(images, labels)]"
        )
    if isinstance(data, TorchDataset) and not isinstance(data, Iterable):
        raise TypeError(
            f"a {type(data).__name__} yields images and no batches: for a data set pass "
            "torch.utils.data.DataLoader(it, batch_size=...)"
        )
    if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
        raise TypeError(
            f"a {type(data).__name__} is no loader: something that yields (inputs, labels) is needed, such as "
            "[(images, labels)] for images that fit into one batch"
        )
    loader: Iterable[Any] = data
    return loader


def map_batches(
    function: Callable[[Batch], R],
    data: Any,
    module: nn.Module,
    *,
    title: str = "embeddings",
    progress: bool | None = None,
    labelled: bool = False,
    shared: bool = False,
) -> list[R]:
    """Return what a function makes of every batch: the one pass for everything that is read of a loader.

    Args:
        function: gets each `Batch` with its inputs on the module's device, while the module is in evaluation mode and
            without gradients.
        data: see `read`; a loader is iterated once.
        module: what the function computes with.
        title: of the progress bar.
        progress: whether to show it; None asks the terminal.
        labelled: whether the batches need labels.
        shared: whether other threads may compute with the module meanwhile; see `evaluating`.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> [u.shape for u in map_batches(lambda batch: layer(batch.inputs), [torch.zeros(4, 3)], layer)]
        [torch.Size([4, 2])]
    """
    with evaluating(module, shared=shared):
        batches = read(data, title, labelled=labelled, progress=progress)
        return [function(batch.to(module)) for batch in batches]


def repeatable(data: Any) -> Any:
    """Return data that may be read again and again in one order.

    A list and a data set of this library are that already; the batches of any other loader are read once and kept.

    Example:
        >>> repeatable(iter([torch.zeros(2)]))[0].inputs
        tensor([0., 0.])
    """
    fixed = is_single(data) or isinstance(data, list) or _is_dataset(data)
    return data if fixed else list(read(data))


def _is_dataset(data: Any) -> bool:
    """Whether data are a data set of this library, which yields the same batches every time."""
    from laplacian_metric.core.dataset import Dataset  # which yields batches itself

    return isinstance(data, Dataset)


def best_device() -> torch.device:
    """Return the GPU that torch can use, CUDA's (and ROCm's) before Apple's, else the processor."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def pins_memory() -> bool:
    """Whether batches are put into pinned memory, out of which they are copied to a GPU while it computes."""
    return torch.cuda.is_available()


def device_of(module: nn.Module) -> torch.device:
    """Return where the last of a module's parameters is, its head's in an encoder; the processor if it has none."""
    return [torch.empty(0), *module.parameters()][-1].device


def to_device(inputs: Any, target: nn.Module | Tensor) -> Any:
    """Return inputs on the device of a tensor, or of the module's last parameter, whatever they are made of.

    Arrays of numpy become tensors; those of floats take the dtype of the target.
    """
    like = target if isinstance(target, Tensor) else [torch.empty(0), *target.parameters()][-1]
    if isinstance(inputs, Tensor):
        # Out of pinned memory the copy goes on while the GPU computes; the next kernel on it waits for the copy.
        return inputs.to(like.device, non_blocking=inputs.is_pinned() if like.is_cuda else False)
    if isinstance(inputs, np.ndarray):
        # What is mapped from a file for reading only would make torch warn.
        tensor = torch.as_tensor(inputs if inputs.flags.writeable else inputs.copy(), device=like.device)
        return tensor.to(like.dtype) if tensor.is_floating_point() else tensor
    if isinstance(inputs, Mapping):
        return {name: to_device(value, like) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        moved = [to_device(value, like) for value in inputs]
        # A named tuple takes its entries one by one.
        return type(inputs)(*moved) if hasattr(inputs, "_fields") else type(inputs)(moved)
    return inputs
