"""Networks and what surrounds them: architectures, tensors, augmentation, training. Import them late: torch is heavy."""
