"""The transcript of both commands: what it keeps, and what it does not say of the machine."""

from __future__ import annotations

import platform
from pathlib import Path

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
    assert lines[-6:] == [
        "training 280/280",
        "report: demo-report/report.html",
        "rootdir: .",
        "plugins from one.py; Docs: (address)",
        "on (machine), in notes.txt",
        "1/2 tests, 3 passed in 4.00s",
    ]
