"""Torch pieces that students share: networks, augmentation, training. These modules import torch: load them late."""
