"""The commands of `lam`, one file each; what they do is in `laplacian_metric.commands.steps`.

Importing a command loads neither torch nor anything else that takes long; running it does, where it needs it.
"""
