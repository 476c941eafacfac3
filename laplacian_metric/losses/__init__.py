"""Losses of methods that no maintained library has, or has right."""
