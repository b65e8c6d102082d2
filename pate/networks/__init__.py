"""Networks and what surrounds them: architectures, tensors, augmentation, training. These import torch: load them late."""
