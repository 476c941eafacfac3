"""Modules put into evaluation mode for a while, by one thread or by several at once."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn


class ModeChangedError(RuntimeError):
    """A module was put into training mode, or is in use, while another thread needs it in evaluation mode."""


@dataclass
class _Use:
    """A module in use: the mode that it had before, and how often each thread uses it, alone or shared."""

    module: nn.Module
    training: bool
    threads: Counter[int] = field(default_factory=Counter)
    alone: int = 0


# Of every module inside of `evaluating`, by its id, which cannot be taken by another as long as it is here.
_USES: dict[int, _Use] = {}
_FREED = threading.Condition()


def _forget_other_threads() -> None:
    """In a forked process none of the threads that used modules goes on, but for the one that forked."""
    global _FREED
    _FREED = threading.Condition()
    for use in _USES.values():
        use.threads = Counter({me: use.threads[me] for me in [threading.get_ident()] if use.threads[me]})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


@contextmanager
def evaluating(module: nn.Module, *, shared: bool = False, gradients: bool = False) -> Iterator[None]:
    """Switch off dropout and batch statistics inside; afterwards every submodule has the mode that it had before.

    Threads may do so at the same time: the modes are those from before when the last of them is done.

    Args:
        module: with all of its submodules.
        shared: other threads may be inside at the same time with ``shared=True`` too, as plain forward passes may.
            Without it, others with the same submodules wait: for passes that replace tensors or hooks for a moment.
        gradients: leave gradients as they are; otherwise there are none inside.

    Raises:
        ModeChangedError: a submodule was put into training mode inside, so that what was computed is not valid.

    Example:
        >>> layer = nn.Sequential(nn.Dropout())
        >>> with evaluating(layer):
        ...     layer[0].training
        False
        >>> layer[0].training
        True
    """
    parts, thread = list(module.modules()), threading.get_ident()
    with _FREED:
        _FREED.wait_for(
            lambda: all(
                use is None or set(use.threads) <= {thread} or (shared and not use.alone)
                for use in (_USES.get(id(part)) for part in parts)
            )
        )
        for part in parts:
            use = _USES.setdefault(id(part), _Use(part, part.training))
            use.threads[thread] += 1
            use.alone += not shared
            if part.training:
                part.training = False
    try:
        with nullcontext() if gradients else torch.no_grad():
            yield
    finally:
        changed = _leave(parts, thread, shared)
    if changed:
        raise ModeChangedError(
            f"{changed} was put into training mode while images were embedded with it, so that the embeddings are not "
            "valid: do not train a module that another thread embeds with, or embed with a copy.deepcopy of it"
        )


def check_unused(module: nn.Module) -> None:
    """Refuse to train a module that another thread has put into evaluation mode for now."""
    use, thread = _USES.get(id(module)), threading.get_ident()
    if use is not None and any(other != thread for other in use.threads):
        raise ModeChangedError(
            f"another thread embeds with this {type(module).__name__}, which is in evaluation mode meanwhile: embed "
            "with a copy.deepcopy of what is trained, or between two steps"
        )


def _leave(parts: list[nn.Module], thread: int, shared: bool) -> str | None:
    """Restore the modes of what nobody uses any more; returns the class of a module whose mode was changed inside."""
    changed = None
    with _FREED:
        for part in parts:
            use = _USES[id(part)]
            use.threads[thread] -= 1
            use.threads += Counter()  # leaves out those at 0
            use.alone -= not shared
            if part.training:  # whoever changed it meant it: it stays
                changed = changed or type(part).__name__
            if not use.threads:
                del _USES[id(part)]
                if use.training:
                    part.training = True
        _FREED.notify_all()
    return changed
