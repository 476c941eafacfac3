"""Cutting modules: the encoder's parts against the head inside of the module, and what cannot be cut."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder
from tests.encoder import models


def inside(module: nn.Module, head: nn.Linear, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What goes into the head within the module, what comes out of it, and the module's output."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = head.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    with torch.no_grad():
        output = module(*args, **kwargs)
    handle.remove()
    ((h, u),) = seen
    return h, u, output


def images() -> Tensor:
    return torch.randn(5, 3, 7, 7, generator=torch.Generator().manual_seed(1))


def flat() -> Tensor:
    return torch.randn(5, 12, generator=torch.Generator().manual_seed(1))


CASES: dict[str, tuple[nn.Module, str | None, str, Tensor]] = {
    "a linear layer": (nn.Linear(12, 3), None, "", flat()),
    "chain": (models.small_chain(), None, "1.1", flat()),
    "chain with identity and torch's norm": (
        models.small_chain(nn.Identity(), models.L2Norm()),
        None,
        "1.1",
        flat(),
    ),
    "nnj's layers": (
        models.JacobianSequential(models.JacobianLinear(12, 6), nn.Tanh(), models.JacobianLinear(6, 3)),
        None,
        "2",
        flat(),
    ),
    "nnj's layers with its norm": (
        models.JacobianSequential(models.JacobianLinear(12, 6), models.JacobianLinear(6, 3), models.L2Norm()),
        None,
        "1",
        flat(),
    ),
    "residual, named": (models.Residual(), "fc", "fc", images()),
    "residual with norm, named": (models.Residual(normalize=True), "fc", "fc", images()),
    "registered last, deep": (models.HeadLast().eval(), None, "top.head", torch.randn(5, 12)),
    "attention before it": (models.Attention(), "head", "head", torch.randn(5, 4, 6)),
    "words": (models.Tokens(), None, "head", torch.randint(20, (5, 4))),
    "a module in a chain, then the norm": (
        nn.Sequential(models.Residual(), models.L2Norm()),
        "0.fc",
        "0.fc",
        images(),
    ),
}


@pytest.mark.parametrize("with_example", [False, True])
@pytest.mark.parametrize("case", list(CASES))
def test_the_parts_are_those_inside_of_the_module(case: str, with_example: bool) -> None:
    original, head_name, name, inputs = CASES[case]
    module = copy.deepcopy(original).eval()
    encoder = Encoder.from_module(module, head_name, example_inputs=inputs[:2] if with_example else None)
    head = module.get_submodule(name)
    assert encoder.head is head
    h, u, output = inside(module, head, inputs)  # type: ignore[arg-type]
    for _ in range(2):  # the first call is checked, the second is not
        torch.testing.assert_close(encoder.features(inputs), h)
        torch.testing.assert_close(encoder.raw(inputs), u)
        torch.testing.assert_close(encoder(inputs), F.normalize(u, dim=1))
    assert torch.allclose(output, u) or torch.allclose(output, F.normalize(u, dim=1), atol=1e-6)


@pytest.mark.parametrize("case", list(CASES))
def test_parameters_are_shared_and_the_module_is_left_alone(case: str) -> None:
    original, head_name, _, inputs = CASES[case]
    module = copy.deepcopy(original).eval()
    before = {name: (id(x), x.clone()) for name, x in module.state_dict(keep_vars=True).items()}
    modules = {name: (id(x), x.training) for name, x in module.named_modules(remove_duplicate=False)}
    encoder = Encoder.from_module(module, head_name, example_inputs=inputs)
    encoder(inputs)
    assert {name: (id(x), x.training) for name, x in module.named_modules(remove_duplicate=False)} == modules
    after = module.state_dict(keep_vars=True)
    assert all(
        id(after[name]) == number and torch.equal(after[name], x) for name, (number, x) in before.items()
    )
    own = [id(x) for x in encoder.parameters()]
    assert len(own) == len(set(own))
    assert set(own) == {id(x) for x in module.parameters()}
    # A change of precision, which replaces what buffers and parameters are, reaches both.
    encoder.double()
    assert all(
        x.dtype == torch.float64 for x in (*module.parameters(), *module.buffers()) if x.is_floating_point()
    )


def test_a_wrong_guess_is_found_at_the_first_call() -> None:
    encoder = Encoder.from_module(models.Residual().eval())  # the one registered last is another
    for _ in range(2):  # and not only the first time
        with pytest.raises(ValueError, match=r"'gate'.*fc"):
            encoder(images())
    assert Encoder.from_module(models.Residual().eval(), example_inputs=images()).dim == 4


def test_an_example_leaves_running_statistics_and_random_numbers_alone() -> None:
    module = models.Residual()
    assert module.training
    dropping = nn.Sequential(nn.BatchNorm1d(12), nn.Dropout(), nn.Linear(12, 3))
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    Encoder.from_module(module, example_inputs=images())
    Encoder.from_module(dropping, example_inputs=flat())
    assert int(dropping.get_buffer("0.num_batches_tracked")) == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())
    assert module.training


@pytest.mark.parametrize(
    "case", ["chain", "residual, named", "nnj's layers with its norm", "registered last, deep"]
)
@pytest.mark.parametrize("verified", [False, True])
def test_a_cut_encoder_can_be_exported(case: str, verified: bool) -> None:
    original, head_name, _, inputs = CASES[case]
    encoder = Encoder.from_module(copy.deepcopy(original).eval(), head_name)
    if verified:
        encoder(inputs)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(encoder, (inputs,), dynamic_shapes=((({0: batch}),),)).module()
    torch.testing.assert_close(exported(inputs[:3]), encoder(inputs[:3]))


@pytest.mark.parametrize("case", ["chain", "residual, named"])
def test_copies_and_pickles_stand_alone(case: str) -> None:
    original, head_name, _, inputs = CASES[case]
    encoder = Encoder.from_module(copy.deepcopy(original).eval(), head_name, example_inputs=inputs)
    expected = encoder(inputs)
    for copied in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert copied.fingerprint() == encoder.fingerprint()
        with torch.no_grad():
            copied.head.weight.mul_(-1)
        assert not torch.equal(copied(inputs), expected)
        assert torch.equal(encoder(inputs), expected)


def test_gradients_and_training_go_through() -> None:
    module = models.Residual()
    encoder = Encoder.from_module(module, "fc")
    for _ in range(2):
        module.zero_grad()
        encoder(images()).square().sum().backward()
        assert module.stem.weight.grad is not None
        assert module.fc.weight.grad is not None
    batches = module.get_buffer("blocks.0.norm.num_batches_tracked")
    assert int(batches) == 2  # one forward pass a call, the first one too


class PoolAttention(nn.Module):
    """Some models end in an attention layer of their own, whose last step is a linear layer like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(6, 1)
        self.project = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.project((self.query(tokens).softmax(1) * tokens).sum(1))  # type: ignore[no-any-return]


def test_attention_at_the_end_has_to_be_named_or_run() -> None:
    module, tokens = nn.Sequential(nn.LayerNorm(6), PoolAttention()), torch.randn(4, 5, 6)
    with pytest.raises(ValueError, match="PoolAttention"):
        Encoder.from_module(module)
    for encoder in (
        Encoder.from_module(module, "1.project"),
        Encoder.from_module(module, example_inputs=tokens),
    ):
        torch.testing.assert_close(encoder.raw(tokens), module(tokens))


def test_an_encoder_is_a_module_too() -> None:
    encoder = Encoder.from_module(models.small_chain())
    again = Encoder.from_module(encoder, normalize=False)
    assert again.backbone is encoder.backbone
    assert again.head is encoder.head
    assert not again.normalize
