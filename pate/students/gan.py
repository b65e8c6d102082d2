"""Semi-supervised GAN (Salimans et al., 2016): a classifier that also tells real examples from generated ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pate.students._neural import NeuralStudent
from pate.students.mixmatch import mixed_up, sharpened

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pate.networks._training import ClassPrior
    from pate.students._neural import Learner, TrainingStart


@dataclass(eq=False, repr=False, kw_only=True)
class GAN(NeuralStudent):
    """Semi-supervised GAN: a classifier that also tells real examples from generated ones.

    The discriminator has one logit for each class; 'generated' is a further class with logit 0, so an example counts
    as real by the sum of its exponentiated logits. The generator matches the mean features of real examples. Weights
    are normalised and averaged for prediction. Source: Salimans et al. 2016.

    Beyond the paper, so that 100 labels are enough, some of them wrong: the discriminator is drawn towards the
    averaged network's guess on another augmentation of the same unlabelled example.

    Parameters
    ----------
    steps : int, default 4000
        Number of training steps.
    batch_size : int, default 32
        Labelled examples, and as many unlabelled and generated ones, in each step.
    noise : int, default 64
        Numbers that the generator makes an example from.
    unlabelled_weight : float, default 1.0
        Weight of the loss that tells real from generated examples.
    consistency_weight : float, default 50.0
        Final weight of the pull towards the averaged network's guesses; 0 leaves it out.
    temperature : float, default 0.5
        Sharpening of those guesses; 1 leaves them as they are, lower is sharper.
    alpha : float, default 0.0
        Above 0, labelled and unlabelled examples are mixed in pairs with weights from Beta(alpha, alpha).
    ramp : float, default 0.3
        Share of the steps over which the consistency weight rises.
    learning_rate : float, default 3e-3
        Rate of both optimisers at the beginning; it falls along a cosine.
    ema : float, default 0.998
        Decay of the averaged weights, which predict.
    label_smoothing : float, default 0.0
        Share of each label that is spread evenly over all classes.
    label_noise : float, default 0.7
        Share of labels expected to be wrong. As training goes on, a label is blended with the averaged
        network's own guess, by up to this share.
    class_prior : {'free', 'labels', 'even'}, default 'free'
        How often classes occur among unlabelled examples: as the network says, as among the labels, or equally
        often. Guesses are scaled towards it where it is known.
    augmentation : dict, optional
        Strength of each random change of an image, such as {'shift': 2}; by default what suits the shape.
    channels : int, default 16
        Channels of the first convolution (images).
    hidden : int, default 128
        Width of the hidden layer.
    depth : {3, 4}, default 3
        Number of convolutions (images).
    normed : {'weight', 'batch'}, default 'weight'
        Whether layers are normalised by their weights or by the batch; the batch helps where images are harder
        than digits on a plain ground.
    patience : int, optional
        Stop when the unlabelled loss has not fallen for so many times 50 steps; never by default.
    device : {'auto', 'cpu', 'cuda'}, default 'auto'
        Where to train; 'auto' takes a GPU where there is one.
    random_state : int, default 0
        Seed of everything that is drawn while training.
    """

    steps: int = 4000
    noise: int = 64
    unlabelled_weight: float = 1.0
    consistency_weight: float = 50.0
    ramp: float = 0.3
    learning_rate: float = 3e-3
    label_noise: float = 0.7
    normed: str = "weight"

    @property
    def _watch_from(self) -> float:
        return 0.5

    def _learner(self, start: TrainingStart, prior: ClassPrior, pool: Tensor) -> Learner:
        import torch
        from torch.nn.functional import softplus

        from pate.networks._architectures import Generator, seeded

        generator, augment, network, _ = start
        sizes = self.noise, max(4, self.channels // 2), self.hidden
        maker = seeded(lambda: Generator(self.shape_, *sizes, float(pool.min()), float(pool.max())), self.random_state)
        maker = maker.to(pool.device).to(memory_format=torch.channels_last).train()
        optimisers: dict[str, torch.optim.Optimizer] = {
            name: torch.optim.Adam(module.parameters(), lr=self.learning_rate, betas=(0.5, 0.999), fused=True)
            for name, module in (("discriminator", network), ("generator", maker))
        }

        def learn(few: Tensor, given: Tensor, many: Tensor, rise: float) -> tuple[Tensor, Tensor]:
            real = augment(many)
            made = maker(torch.randn(self.batch_size, self.noise, generator=generator).to(pool.device))
            with torch.no_grad():
                own, guess = self.network_(torch.cat([few, augment(many)])).softmax(1).split(self.batch_size)
                guess = sharpened(prior.align(guess), self.temperature)
                given = torch.lerp(given, own, self.label_noise * rise)
            examples, answers = torch.cat([few, real]), torch.cat([given, guess])
            if self.alpha:
                examples, answers = mixed_up(examples, answers, self.alpha, generator)
            features = network.features(examples)
            on_few, on_real = network.logits(features).split(self.batch_size)
            seen = made.detach().requires_grad_()  # looked at once, for both networks' sake
            with _unremembered(network):
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
            return loss, unlabelled

        return learn, {"generator": maker}, optimisers


@contextmanager
def _unremembered(network: torch.nn.Module) -> Iterator[None]:
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
