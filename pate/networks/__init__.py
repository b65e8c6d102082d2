"""Networks and what surrounds them: architectures, tensors, augmentation, training. They import torch: load them late."""
