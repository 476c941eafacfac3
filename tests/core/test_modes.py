"""A module in evaluation mode for a while, and as it was afterwards."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, OnlineLAM
from laplacian_metric.core.modes import ModeChangedError, evaluating


def network() -> nn.Module:
    """Parts in training and in evaluation mode, in an order that no call of train() or eval() makes."""
    module = nn.Sequential(
        nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), nn.Dropout(0.5)
    )
    module.train()
    module[1].training = False
    module[0].training = False
    return module


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_every_part_is_as_before(error: type[BaseException] | None) -> None:
    module = network()
    before = [part.training for part in module.modules()]
    with pytest.raises(error) if error else nullcontext(), evaluating(module):
        assert not any(part.training for part in module.modules())
        assert not torch.is_grad_enabled()
        x = torch.randn(4, 3)
        assert torch.equal(module(x), module(x))
        assert not module(x).requires_grad
        if error:
            raise error
    assert [part.training for part in module.modules()] == before
    assert torch.is_grad_enabled()
    assert int(module[0].num_batches_tracked) == 0


def noisy_lam() -> tuple[LAM, torch.Tensor]:
    """A posterior of a network to which its mode matters, fitted, and then left in training mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5)]
        encoder = Encoder(nn.Sequential(*layers), nn.Linear(5, 3)).eval()
        x = torch.randn(64, 6)
    lam = LAM(encoder, ContrastiveLoss()).fit([(x, torch.arange(64) % 4)], check_mode=False)
    encoder.train()
    return lam, x


def together(count: int, work: Callable[[], None]) -> list[BaseException]:
    """Run some work in several threads at once; returns what they raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"
    return errors


@pytest.mark.parametrize("shared", [True, False])
def test_threads_that_embed_a_network_in_training_mode(shared: bool) -> None:
    lam, x = noisy_lam()
    encoder = lam.encoder
    modes = [part.training for part in encoder.modules()]
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    expected = lam.embed(x).kappa
    kappas: list[torch.Tensor] = []

    def work() -> None:
        for _ in range(20):
            with evaluating(encoder, shared=shared):
                kappas.append(lam.embed(x).kappa)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert together(4, work) == []
    finally:
        sys.setswitchinterval(interval)
    assert len(kappas) == 80
    assert all(torch.equal(kappa, expected) for kappa in kappas)
    assert [part.training for part in encoder.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_shared_passes_run_at_the_same_time_and_others_wait() -> None:
    module = nn.Sequential(nn.Dropout())
    inside = threading.Barrier(3)

    def work() -> None:
        with evaluating(module, shared=True):
            inside.wait(30)  # passed only with all three of them inside

    assert together(3, work) == []
    most, now = [], []

    def alone() -> None:
        with evaluating(module[0]):
            now.append(1)
            most.append(len(now))
            time.sleep(0.001)
            now.pop()

    with evaluating(module):
        pass
    assert together(4, alone) == []
    assert most == [1, 1, 1, 1]
    assert module[0].training


def test_uses_inside_of_each_other_end_with_the_first_mode() -> None:
    module = network()
    before = [part.training for part in module.modules()]
    with evaluating(module), evaluating(module[1], shared=True), evaluating(module, gradients=True):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == before


def test_a_mode_that_changes_meanwhile_is_no_silent_error() -> None:
    module = network()
    with pytest.raises(ModeChangedError, match="Sequential"), evaluating(module):
        module.train()
    assert all(part.training for part in module.modules()), "whoever changed it meant it"
    with pytest.raises(IndexError), evaluating(module):  # an error from inside comes out as it is
        _ = module.train()[5]


@contextmanager
def embedding_elsewhere(module: nn.Module) -> Iterator[None]:
    """Another thread is inside of `evaluating` meanwhile."""
    reached, done = threading.Event(), threading.Event()

    def work() -> None:
        with evaluating(module):
            reached.set()
            done.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    reached.wait(30)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_what_another_thread_embeds_with_is_not_trained() -> None:
    lam, x = noisy_lam()
    optimizer = torch.optim.SGD(lam.encoder.parameters(), lr=0.01)
    online = OnlineLAM(lam.encoder, optimizer, lam.loss, num_images=64)
    labels = torch.arange(64) % 4
    with embedding_elsewhere(lam.encoder), pytest.raises(ModeChangedError, match="Encoder"):
        online.step(x, labels)
    assert online.step(x, labels) > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have() -> None:
    module = network()
    with embedding_elsewhere(module):
        child = os.fork()
        if not child:
            try:
                with evaluating(module):
                    os._exit(0 if not module.training else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
