"""The embedders of LAM, post-hoc and online."""
