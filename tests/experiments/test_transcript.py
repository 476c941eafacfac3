"""The transcript of both commands: what it keeps, and what it does not say of the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from experiments import transcript

CLONE = Path("/", "work", "here", "clone")
LOG = f"""\
Looking in indexes: https://packages.example.org/simple
WARNING: Location 'file:///srv/wheels/' is ignored: it is neither a file nor a directory.
Processing {CLONE}
  Installing build dependencies: started
Collecting torch>=2.6
Successfully installed {" ".join(f"package{number}-1.0" for number in range(30))}
\x1b[1mtraining\x1b[0m   1/280\r\x1b[32mtraining\x1b[0m 280/280
report: demo-report/report.html
rootdir: {CLONE}
plugins from /usr/lib/python3/dist-packages/one.py; Docs: https://docs.example.org/a.html
on {platform.node()}, in {Path.home()}/notes.txt
1/2 tests, 3 passed in 4.00s
"""


def test_nothing_of_the_machine_is_kept() -> None:
    lines = transcript.cleaned(LOG, CLONE)
    text = "\n".join(lines)
    assert "://" not in text
    assert "example.org" not in text
    assert platform.node() not in text
    assert str(Path.home()) not in text
    assert "/work" not in text
    assert "/usr" not in text
    assert "Collecting" not in text
    assert max(map(len, lines)) <= transcript.WIDTH
    assert lines[0].startswith("Successfully installed package0-1.0")
    assert lines[-6:] == [
        "training 280/280",
        "report: demo-report/report.html",
        "rootdir: .",
        "plugins from one.py; Docs: (address)",
        "on (machine), in notes.txt",
        "1/2 tests, 3 passed in 4.00s",
    ]


def test_long_outputs_are_shortened_in_the_middle() -> None:
    lines = [str(number) for number in range(200)]
    shown = transcript.shortened(lines)
    assert shown[transcript.FIRST] == "[... 120 lines ...]"
    assert shown[0] == "0"
    assert shown[-1] == "199"
    assert transcript.shortened(lines[:81]) == lines[:81]


def test_the_page_has_both_commands(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    arguments = ["--out", str(tmp_path / "page.md")]
    for number in (1, 2):
        (tmp_path / f"{number}.log").write_text(f"output {number}\n")
        arguments += ["--run", f"command {number}", str(10 * number), str(tmp_path / f"{number}.log")]
    assert transcript.main(arguments) == 0
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    for number in (1, 2):
        assert f"## {number}0 seconds\n\n```console\n$ command {number}\noutput {number}\n```\n" in text


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--transcripts", "x"], "usage"), (["--transcript"], "usage")]
)
def test_ci_knows_its_option(root: Path, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        ["bash", str(root / ".ci" / "run"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == 2
    assert said in done.stderr
