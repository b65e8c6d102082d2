"""Networks and what they need: architectures, tensors, augmentation, training. Load late: they import torch."""
