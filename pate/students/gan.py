"""Semi-supervised GAN (Salimans et al., 2016): a classifier that also tells real examples from generated ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.students._neural import NeuralStudent

if TYPE_CHECKING:
    import torch

    from pate.networks.training import Draws, ProgressCallback


class GAN(NeuralStudent):
    """The discriminator has K logits; 'generated' is an implicit further class with logit 0: an example counts
    as real by the sum of its exponentiated logits. The generator matches the mean features of real examples.
    Weights are normalised (weight norm) and averaged for prediction.

    Beyond the paper, so that 100 labels are enough, some of them wrong: the discriminator is drawn towards the averaged
    network's guess on another augmentation of the same unlabelled example, with a weight that rises to
    `consistency_weight` over the first `ramp` of the steps; 0 leaves that out. `class_mix`, `distrust`, `depth` and
    `patience` are as in MixMatch. `alpha` above 0 mixes labelled and unlabelled examples in pairs as MixMatch does, and
    `normed: batch` normalises layers by the batch instead of their weights: both help where images are harder than
    digits on a plain ground.
    """

    def __init__(
        self,
        steps: int = 4000,
        batch_size: int = 32,
        noise: int = 64,
        unlabelled_weight: float = 1.0,
        consistency_weight: float = 50.0,
        temperature: float = 0.5,
        alpha: float = 0.0,
        ramp: float = 0.3,
        learning_rate: float = 3e-3,
        ema: float = 0.998,
        label_smoothing: float = 0.0,
        distrust: float = 0.7,
        class_mix: str = "free",
        augmentation: dict[str, Any] | None = None,
        channels: int = 16,
        hidden: int = 128,
        depth: int = 3,
        normed: str = "weight",
        patience: int | None = None,
        device: str = "auto",
        random_state: int = 0,
    ) -> None:
        self.steps = steps
        self.batch_size = batch_size
        self.noise = noise
        self.unlabelled_weight = unlabelled_weight
        self.consistency_weight = consistency_weight
        self.temperature = temperature
        self.alpha = alpha
        self.ramp = ramp
        self.learning_rate = learning_rate
        self.ema = ema
        self.label_smoothing = label_smoothing
        self.distrust = distrust
        self.class_mix = class_mix
        self.augmentation = augmentation
        self.channels = channels
        self.hidden = hidden
        self.depth = depth
        self.normed = normed
        self.patience = patience
        self.device = device
        self.random_state = random_state

    def _train(
        self,
        labelled: torch.Tensor,
        labels: torch.Tensor,
        drawn: Draws,
        pool: torch.Tensor,
        progress: ProgressCallback | None,
        checkpoint: Path | None,
        identity: str,
    ) -> None:
        import torch
        from torch.nn.functional import softplus

        from pate.networks.architectures import Generator, seeded
        from pate.networks.training import ClassMix, Training, cosine_rate, draw_batch
        from pate.students.mixmatch import mixed_up, sharpened, smoothed

        generator, augment, network, average = self._begin()
        sizes = self.noise, max(4, self.channels // 2), self.hidden
        maker = seeded(lambda: Generator(self.shape_, *sizes, float(pool.min()), float(pool.max())), self.random_state)
        maker = maker.to(pool.device).to(memory_format=torch.channels_last).train()
        optimisers = {
            "discriminator": torch.optim.Adam(
                network.parameters(), lr=self.learning_rate, betas=(0.5, 0.999), fused=True
            ),
            "generator": torch.optim.Adam(maker.parameters(), lr=self.learning_rate, betas=(0.5, 0.999), fused=True),
        }
        targets = smoothed(labels, len(self.classes_), self.label_smoothing)
        mix = ClassMix(self.class_mix, labels, len(self.classes_)).to(pool.device)

        def step(number: int) -> tuple[torch.Tensor, torch.Tensor]:
            for optimiser in optimisers.values():
                cosine_rate(optimiser, self.learning_rate, number, self.steps)
            rise = min(1.0, number / max(1.0, self.ramp * self.steps))
            rows = drawn.batch(self.batch_size, generator)
            few, given = augment(labelled[rows]), targets[rows]
            many = pool[draw_batch(len(pool), self.batch_size, generator)]
            real = augment(many)
            made = maker(torch.randn(self.batch_size, self.noise, generator=generator).to(pool.device))
            with torch.no_grad():
                own, guess = self.network_(torch.cat([few, augment(many)])).softmax(1).split(self.batch_size)
                guess = sharpened(mix.align(guess), self.temperature)
                given = torch.lerp(given, own, self.distrust * rise)
            examples, answers = torch.cat([few, real]), torch.cat([given, guess])
            if self.alpha:
                examples, answers = mixed_up(examples, answers, self.alpha, generator)
            features = network.features(examples)
            on_few, on_real = network.logits(features).split(self.batch_size)
            seen = made.detach().requires_grad_()  # looked at once, for both networks' sake
            with unremembered(network):
                like = network.features(seen)
            given, guess = answers.split(self.batch_size)
            loss = -(given * on_few.log_softmax(1)).sum(1).mean()
            is_real, is_made = on_real.logsumexp(1), network.logits(like).logsumexp(1)
            unlabelled = softplus(-is_real).mean() + softplus(is_made).mean()
            distance = (on_real.softmax(1) - guess).square().mean()
            total = loss + self.unlabelled_weight * unlabelled + rise * self.consistency_weight * distance
            unlike = (like.mean(0) - features.detach()[self.batch_size :].mean(0)).square().mean()
            (wanted,) = torch.autograd.grad(unlike, seen, retain_graph=True)
            for optimiser in optimisers.values():
                optimiser.zero_grad()
            total.backward(inputs=list(network.parameters()))
            made.backward(wanted)
            for optimiser in optimisers.values():
                optimiser.step()
            average.update_parameters(network)
            return loss, unlabelled

        modules = {"network": network, "average": average, "generator": maker, "mix": mix}
        self.steps_done_ = Training(modules, optimisers, generator).run(
            step,
            self.steps,
            watch_from=self.steps // 2,
            patience=self.patience,
            progress=progress,
            checkpoint=checkpoint,
            identity=identity,
        )


@contextmanager
def unremembered(network: torch.nn.Module) -> Iterator[None]:
    """Batch norms take no notice of what goes through: generated examples would blur what is known of real ones."""
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]
    usual = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(norms, usual, strict=True):
            layer.momentum = momentum
