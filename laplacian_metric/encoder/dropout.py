"""Dropout between the layers of an encoder, without changing the encoder: it keeps its modules and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.encoder import arguments, check_features

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

Drop = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pieces:
    """An encoder in pieces: what comes before all dropout, and the modules before which dropout goes.

    ``start`` holds the modules up to the first dropout, None for the whole backbone. The last of ``rest`` is the head.

    Example:
        >>> encoder = Encoder(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 2))
        >>> pieces = Pieces.of(encoder)
        >>> [[type(module).__name__ for module in piece] for piece in pieces.rest]
        [['Linear', 'ReLU'], ['Linear']]
        >>> x = torch.ones(3, 4)
        >>> bool((pieces.finish(pieces.begin(x), lambda h: h) == encoder.raw(x)).all())
        True
    """

    encoder: Encoder
    start: tuple[nn.Module, ...] | None
    rest: tuple[tuple[nn.Module, ...], ...]

    @staticmethod
    def of(encoder: Encoder, *, only_head: bool = False) -> Pieces:
        """Cut before every linear layer and convolution but the first one of the backbone, and before the head.

        Layers inside of anything but (nested) ``nn.Sequential`` modules, such as the blocks of a ResNet, run in an
        order that only their forward pass knows; a backbone that has any gets dropout before its head only.
        """
        modules = None if only_head else _in_order(encoder.backbone)
        if modules is None:
            return Pieces(encoder, None, ((encoder.head,),))
        cuts = [place for place, module in enumerate(modules) if isinstance(module, LAYERS)][1:]
        ends = [*cuts[1:], len(modules)]
        rest = [tuple(modules[a:b]) for a, b in zip(cuts, ends, strict=True)] if cuts else []
        start = modules[: cuts[0]] if cuts else modules
        return Pieces(encoder, tuple(start), (*rest, (encoder.head,)))

    def begin(self, inputs: Any) -> Tensor:
        """What every draw has in common: the input (N, ...) of the first dropout."""
        if self.start is None:
            return self.encoder.features(inputs)
        args, kwargs = arguments((inputs,), {}, self.encoder.backbone)
        if kwargs or len(args) != 1:
            raise TypeError(
                f"the backbone ({type(self.encoder.backbone).__name__}) takes one tensor of inputs, "
                f"{len(args) + len(kwargs)} are given"
            )
        h: Tensor = args[0]
        for module in self.start:
            h = module(h)
        return h

    def finish(self, h: Tensor, drop: Drop) -> Tensor:
        """From there to the raw embeddings u (N, Z), with ``drop`` before every piece."""
        *pieces, (head,) = self.rest
        for piece in pieces:
            h = drop(h)
            for module in piece:
                h = module(h)
        check_features(h, (h,), {}, self.encoder.backbone, self.encoder.head)
        u: Tensor = head(drop(h))
        return u

    def raw(self, inputs: Any, drop: Drop) -> Tensor:
        """The raw embeddings u (N, Z) with ``drop`` before every piece, by the encoder's own forward pass.

        What the backbone's forward pass does besides calling its modules, such as computing in a lower precision,
        is done here too.
        """
        firsts = [piece[0] for piece in self.rest]
        called = [*(self.start or ()), *(module for piece in self.rest for module in piece)]
        if any(sum(module is other for other in called) > 1 for module in firsts):
            # A module that is called twice has one hook for both calls.
            return self.finish(self.begin(inputs), drop)

        def dropped(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (drop(args[0]), *args[1:])

        hooks = [module.register_forward_pre_hook(dropped) for module in firsts]
        try:
            return self.encoder.raw(inputs)
        finally:
            for hook in hooks:
                hook.remove()


def _in_order(module: nn.Module) -> list[nn.Module] | None:
    """The modules of nested sequences in the order in which they run; None if a layer is inside of anything else."""
    if not _is_plain(module):
        return [module] if isinstance(module, LAYERS) or not _has_layers(module) else None
    ordered: list[nn.Module] = []
    for child in _children(module):
        inside = _in_order(child)
        if inside is None:
            return None
        ordered += inside
    return ordered


def _is_plain(module: nn.Module) -> bool:
    """Whether calling it does no more than calling its children one after the other."""
    return (
        isinstance(module, nn.Sequential)
        and type(module).forward is nn.Sequential.forward
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def _children(module: nn.Module) -> Iterator[nn.Module]:
    yield from (child for child in module._modules.values() if child is not None)  # one may be there twice


def _has_layers(module: nn.Module) -> bool:
    return any(isinstance(part, LAYERS) for part in module.modules())


def dropout(rate: float, generator: torch.Generator | None = None, *, shared: bool = False) -> Drop:
    """A function that sets entries of (N, ...) to 0 with probability ``rate`` and divides the others by 1 - rate.

    Every call draws anew. With ``shared`` all N images lose the same entries, as they do under one draw of a network,
    and the draw does not depend on N.

    Example:
        >>> drop = dropout(0.5, torch.Generator().manual_seed(0), shared=True)
        >>> sorted(set(drop(torch.ones(2, 50)).flatten().tolist()))
        [0.0, 2.0]
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate is {rate:g}, a probability from 0 to below 1 is needed")

    def drop(h: Tensor) -> Tensor:
        if rate == 0:
            return h
        shape = (1, *h.shape[1:]) if shared else tuple(h.shape)
        device = h.device if generator is None else generator.device
        # In place, and in a third of the time that bernoulli_ takes.
        mask = torch.rand(shape, device=device, generator=generator).ge_(rate).mul_(1 / (1 - rate))
        return h * mask.to(h)

    return drop
