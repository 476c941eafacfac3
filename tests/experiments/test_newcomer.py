"""The transcript of a new user's path, without its photographs."""

from __future__ import annotations

from pathlib import Path

from experiments import newcomer


def test_the_folders_are_laid_out_as_somebody_s_own(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        for kind in map(str, range(newcomer.KINDS + 2)):
            folder = tmp_path / "data" / "grocery" / split / kind
            folder.mkdir(parents=True)
            for number in range(40):
                (folder / f"{split}-{number}.jpg").write_bytes(f"{split} {kind} {number}".encode())
    (tmp_path / "data" / "weights").mkdir()
    (tmp_path / "data" / "weights" / newcomer.WEIGHTS).write_bytes(b"weights")
    place = tmp_path / "place"
    place.mkdir()
    newcomer.lay_out(tmp_path / "data", place)
    assert len(list((place / "photos").iterdir())) == newcomer.KINDS
    first = sorted((place / "photos" / "0").iterdir())
    contents = [path.read_bytes() for path in first]
    assert len(first) == newcomer.EACH + 1
    assert len(set(contents)) == newcomer.EACH  # one is there twice
    assert (place / "new.jpg").read_bytes() not in contents
    assert all(len(list(kind.iterdir())) == newcomer.OTHERS for kind in (place / "others").iterdir())


def test_a_command_is_shown_with_what_it_printed_and_how_it_ended(tmp_path: Path) -> None:
    _, lines = newcomer.called("lam query nowhere --id a", tmp_path)
    assert lines[0].startswith("error: ")
    assert lines[-1] == "[exit code 1]"
    text = newcomer.page([("Why", "lam query nowhere --id a", 1.2, lines)], ["photos/cat/  3 photographs"])
    assert "$ lam query nowhere --id a\nerror: " in text
    assert str(tmp_path) not in text
