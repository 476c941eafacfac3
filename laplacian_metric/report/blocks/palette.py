"""Colours and markers of the points in a plot. The colours of everything else are in `assets/blocks.css`."""

from __future__ import annotations

ACCENT = "#1f5f99"  # as in blocks.css
OOD = "#111111"

# Hues far apart first; 10 colours and 7 shapes repeat together only after 70 classes.
CLASSES = (
    "#1f6fb4",
    "#b4301f",
    "#1b7837",
    "#8a5a00",
    "#7b3fa0",
    "#0b7285",
    "#b0186b",
    "#5d6570",
    "#6b4226",
    "#4a4fc4",
)

# Shapes of about the same area around the origin, for a radius of 1.
SHAPES = (
    "M1 0A1 1 0 1 1 -1 0A1 1 0 1 1 1 0Z",  # circle
    "M-.88 -.88H.88V.88H-.88Z",  # square
    "M0 -1.3L1.13 .75H-1.13Z",  # triangle
    "M0 -1.25L1.25 0L0 1.25L-1.25 0Z",  # diamond
    "M0 1.3L1.13 -.75H-1.13Z",  # triangle, pointing down
    "M-.4 -1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",  # plus
    "M0 -1.2L1.14 -.37L.71 .97H-.71L-1.14 -.37Z",  # pentagon
)
# OOD images are lines without a face, so that they are no class even in black and white.
CROSSES = (
    "M-1 -1L1 1M-1 1L1 -1",  # x
    "M0 -1.2V1.2M-1.2 0H1.2",  # plus
    "M-1 -1L1 1M-1 1L1 -1M0 -1.2V1.2",  # asterisk
    "M-1.1 .7L0 -.9L1.1 .7",  # roof
    "M-1.2 0H1.2",  # dash
)


def class_look(position: int) -> tuple[str, str]:
    """Colour and shape of the class at a position.

    Example:
        >>> class_look(0) == class_look(70), len({class_look(k) for k in range(70)})
        (True, 70)
    """
    return CLASSES[position % len(CLASSES)], SHAPES[position % len(SHAPES)]


def ood_look(position: int) -> tuple[str, str]:
    """Colour and shape of the set of OOD images at a position."""
    return OOD, CROSSES[position % len(CROSSES)]
