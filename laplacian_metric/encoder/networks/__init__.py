"""Ready-made backbones, and layers that several networks share."""
