"""Files of weights: what is read, what is refused, and that nothing is half loaded."""

from __future__ import annotations

import copy
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder, save_encoder
from tests.encoder import models

safetensors = pytest.importorskip("safetensors.torch")


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(x, second[name]) for name, x in first.items())


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: x for name, x in state.items()}


WRAPS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"state": {}, "lr": 0.1}},
    "model": lambda state: {"model": state, "args": None},
    "twice": lambda state: {"model": {"state_dict": state}},
    "module.": lambda state: {"state_dict": prefixed(state, "module.")},
    "compiled": lambda state: prefixed(state, "_orig_mod."),
    "lightning": lambda state: {
        "state_dict": prefixed(state, "model.backbone."),
        "hyper_parameters": {"a": 1},
    },
}


@pytest.mark.parametrize("wrap", list(WRAPS))
def test_files_of_torch(tmp_path: Path, wrap: str) -> None:
    trained = network(1)
    path = tmp_path / "weights.pt"
    torch.save(WRAPS[wrap](trained.state_dict()), path)
    for architecture in (network(2), network):
        encoder = Encoder.from_checkpoint(path, architecture)
        assert torch.equal(encoder.raw(torch.ones(1, 4)), Encoder.from_module(trained).raw(torch.ones(1, 4)))
    module = network(3)
    assert Encoder.from_checkpoint(path, module).head is module[2]
    assert same(module, trained)


def test_old_files_of_torch_and_of_other_names(tmp_path: Path) -> None:
    trained = network(1)
    torch.save(trained.state_dict(), tmp_path / "legacy.tar", _use_new_zipfile_serialization=False)
    module = network(2)
    Encoder.from_checkpoint(tmp_path / "legacy.tar", module)
    assert same(module, trained)
    state = {name: x for name, x in trained.state_dict().items() if not name.endswith("tracked")}
    safetensors.save_file(state, tmp_path / "weights.bin")  # the content decides, not the name
    Encoder.from_checkpoint(tmp_path / "weights.bin", module := network(2))
    assert same(module, trained)


def test_a_prefix_picks_a_part_of_the_file(tmp_path: Path) -> None:
    trained = network(1)
    state = {**prefixed(trained.state_dict(), "student."), **prefixed(network(2).state_dict(), "teacher.")}
    path = tmp_path / "both.safetensors"
    safetensors.save_file(state, path)
    Encoder.from_checkpoint(path, module := network(3), prefix="student.")
    assert same(module, trained)
    with pytest.raises(ValueError, match="prefix="):
        Encoder.from_checkpoint(path, network(3))
    with pytest.raises(ValueError, match="'pupil"):
        Encoder.from_checkpoint(path, network(3), prefix="pupil.")


def test_the_backbone_alone(tmp_path: Path) -> None:
    trained = network(1)
    torch.save(
        {**trained.state_dict(), "2.weight": torch.zeros(1000, 6), "2.bias": torch.zeros(1000)},
        tmp_path / "a.pt",
    )
    module = network(2)
    head = copy.deepcopy(module[2])
    Encoder.from_checkpoint(tmp_path / "a.pt", module, part="backbone")
    assert same(module[:2], trained[:2])
    assert same(module[2], head)
    with pytest.raises(ValueError, match='part="backbone"'):
        Encoder.from_checkpoint(tmp_path / "a.pt", network(2))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10"])
def test_what_is_saved_says_what_it_is(tmp_path: Path, name: str, normalize: bool) -> None:
    encoder = Encoder.from_name(name, dim=5, seed=1, normalize=normalize)
    save_encoder(encoder, tmp_path / "encoder.safetensors")
    again = Encoder.from_checkpoint(tmp_path / "encoder.safetensors")
    assert again.fingerprint() == encoder.fingerprint()
    assert again.normalize == normalize
    assert Encoder.from_checkpoint(tmp_path / "encoder.safetensors", normalize=True).normalize
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.safetensors"]


def test_what_is_saved_of_a_module_needs_the_module(tmp_path: Path) -> None:
    trained = models.Residual().eval()
    encoder = Encoder.from_module(trained, "fc")
    path = tmp_path / "encoder.safetensors"
    save_encoder(encoder, path)
    with pytest.raises(ValueError, match=r"encoder\.safetensors"):
        Encoder.from_checkpoint(path)
    again = Encoder.from_checkpoint(path, models.Residual, head="fc")
    assert again.fingerprint() == encoder.fingerprint()
    into = Encoder.from_module(models.Residual(), "fc", normalize=False)
    assert Encoder.from_checkpoint(path, into) is into
    assert into.normalize  # as the file says
    assert into.fingerprint() == encoder.fingerprint()


def test_an_encoder_keeps_its_own_norm_where_the_file_says_nothing(tmp_path: Path) -> None:
    torch.save(network(1).state_dict(), tmp_path / "a.pt")
    state = prefixed(network(1)[:2].state_dict(), "backbone.") | prefixed(network(1)[2].state_dict(), "head.")
    torch.save(state, tmp_path / "encoder.pt")
    into = Encoder(network(2)[:2], nn.Linear(6, 3), normalize=False)
    with pytest.raises(ValueError, match="nothing was loaded"):
        Encoder.from_checkpoint(tmp_path / "a.pt", into, normalize=True)
    assert not into.normalize
    assert not Encoder.from_checkpoint(tmp_path / "encoder.pt", into).normalize
    assert Encoder.from_checkpoint(tmp_path / "encoder.pt", into, normalize=True).normalize


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    shared = nn.Linear(4, 4)
    encoder = Encoder(nn.Sequential(shared, nn.ReLU(), shared), nn.Linear(4, 2))
    save_encoder(encoder, tmp_path / "a.safetensors")
    other = nn.Linear(4, 4)
    again = Encoder(nn.Sequential(other, nn.ReLU(), other), nn.Linear(4, 2))
    Encoder.from_checkpoint(tmp_path / "a.safetensors", again)
    assert again.fingerprint() == encoder.fingerprint()


def broken(change: Callable[[dict[str, Tensor]], None]) -> dict[str, Tensor]:
    state = dict(network(1).state_dict())
    change(state)
    return state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (broken(lambda s: s.__delitem__("0.bias")), r"0\.bias"),
        (broken(lambda s: s.update(extra=torch.ones(1))), "extra"),
        (
            broken(lambda s: s.update({"0.weight": torch.ones(6, 5)})),
            r"0\.weight",
        ),
        (
            broken(lambda s: s.update({"2.bias": torch.tensor([1.0, torch.nan, 0.0])})),
            r"2\.bias",
        ),
        (
            broken(lambda s: s.update({"1.running_var": torch.full((6,), torch.inf)})),
            r"1\.running_var",
        ),
        (
            models.Residual().state_dict(),
            "missing",
        ),
    ],
)
def test_all_or_nothing(tmp_path: Path, state: dict[str, Tensor], message: str) -> None:
    torch.save(state, tmp_path / "a.pt")
    module, before = network(2), network(2)
    with pytest.raises(ValueError, match=message):
        Encoder.from_checkpoint(tmp_path / "a.pt", module)
    assert same(module, before)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('this ran')",))


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def scripted() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(4, 2)), buffer)
    return buffer.getvalue()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model/notes.txt", "nothing")
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol", "ignore:.*torch.jit")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("module.pt", lambda: saved(models.small_chain())),
        ("evil.pt", lambda: saved({"state_dict": network().state_dict(), "config": Evil()})),
        ("plain.pkl", lambda: pickle.dumps({"state_dict": Evil()})),
        ("script.pt", scripted),
        ("other.zip", zipped),
        (
            "pointer.safetensors",
            lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        ),
        ("page.safetensors", lambda: b"<!doctype html>"),
        ("cut.safetensors", lambda: safetensors.save(dict(network().state_dict()))[:-9]),
        ("cut.pt", lambda: saved(network().state_dict())[:-200]),
        ("empty.pt", lambda: b""),
        ("page.pt", lambda: b"<!doctype html><title>404</title>"),
        ("few.pt", lambda: b"\x80\x02"),
        ("none.pt", lambda: saved({"epoch": 3, "loss": 0.1})),
        ("list.pt", lambda: saved([torch.ones(2)])),
    ],
)
def test_files_of_code_and_of_something_else_are_refused(
    name: str, content: Callable[[], bytes], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content())
    with pytest.raises(ValueError, match=name):
        Encoder.from_checkpoint(tmp_path / name, network)
