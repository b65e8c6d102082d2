"""MixMatch (Berthelot et al., 2019): guess labels of augmented examples, sharpen them, mix all examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pate.students._neural import NeuralStudent

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pate.networks._training import ClassPrior
    from pate.students._neural import Learner, TrainingStart


@dataclass(eq=False, repr=False, kw_only=True)
class MixMatch(NeuralStudent):
    """MixMatch: guess the labels of augmented examples, sharpen the guesses, mix all examples.

    In each step the network's mean guess over `views` augmentations of an unlabelled example, sharpened by
    `temperature`, becomes its label. Labelled and unlabelled examples are then mixed in pairs (MixUp). The labelled
    loss is cross-entropy, the unlabelled one a squared distance whose weight rises to `unlabelled_weight` over the
    first `ramp` of the steps. Source: Berthelot et al. 2019.

    Parameters
    ----------
    steps : int, default 1000
        Number of training steps.
    batch_size : int, default 32
        Labelled examples, and as many unlabelled ones, in each step.
    views : int, default 2
        Augmentations of an unlabelled example that are averaged into its guess.
    temperature : float, default 0.5
        Sharpening of guesses; 1 leaves them as they are, lower is sharper.
    alpha : float, default 0.75
        Mixing weights are drawn from Beta(alpha, alpha).
    unlabelled_weight : float, default 50.0
        Final weight of the unlabelled loss.
    ramp : float, default 0.4
        Share of the steps over which that weight rises.
    learning_rate : float, default 2e-3
        Rate of the optimiser at the beginning; it falls along a cosine.
    weight_decay : float, default 0.02
        Weight decay of the optimiser.
    ema : float, default 0.998
        Decay of the averaged weights, which predict.
    label_smoothing : float, default 0.0
        Share of each label that is spread evenly over all classes.
    label_noise : float, default 0.5
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
    patience : int, optional
        Stop when the unlabelled loss has not fallen for so many times 50 steps; never by default.
    device : {'auto', 'cpu', 'cuda'}, default 'auto'
        Where to train; 'auto' takes a GPU where there is one.
    random_state : int, default 0
        Seed of everything that is drawn while training.
    """

    steps: int = 1000
    views: int = 2
    alpha: float = 0.75
    unlabelled_weight: float = 50.0
    weight_decay: float = 0.02

    def _learner(self, start: TrainingStart, prior: ClassPrior, pool: Tensor) -> Learner:
        import torch

        generator, augment, network, _ = start
        optimiser = torch.optim.AdamW(
            network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )

        def learn(few: Tensor, given: Tensor, many: Tensor, rise: float) -> tuple[Tensor, Tensor]:
            views = augment(torch.cat([many] * self.views))
            with torch.no_grad():
                guess = network(views).softmax(1).view(self.views, len(many), -1).mean(0)
                guess = sharpened(prior.align(guess), self.temperature).repeat(self.views, 1)
                if self.label_noise:
                    own = self.network_(few).softmax(1)
                    given = torch.lerp(given, own, self.label_noise * rise)
            examples, answers = mixed_up(torch.cat([few, views]), torch.cat([given, guess]), self.alpha, generator)
            scores = network(examples).log_softmax(1)
            n = len(few)
            loss = -(answers[:n] * scores[:n]).sum(1).mean()
            unlabelled = (scores[n:].exp() - answers[n:]).square().mean()
            optimiser.zero_grad()
            (loss + rise * self.unlabelled_weight * unlabelled).backward()
            optimiser.step()
            return loss, unlabelled

        return learn, {}, {"optimiser": optimiser}


def sharpened(guess: Tensor, temperature: float) -> Tensor:
    """The distribution with its entropy lowered: powers of 1/temperature, normalised."""
    powers = guess.pow(1 / temperature)
    return powers / powers.sum(1, keepdim=True)


def mixed_up(examples: Tensor, answers: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each example blended with a random other one, itself the larger share; answers alike."""
    import torch

    other = torch.randperm(len(examples), generator=generator)
    gammas = torch._standard_gamma(torch.full((2, len(examples)), alpha), generator=generator)
    own = (gammas[0] / gammas.sum(0)).to(examples.device)  # Beta(alpha, alpha), as a share of two gamma draws
    own = torch.maximum(own, 1 - own)
    shares = own.view(-1, *[1] * (examples.ndim - 1))
    return torch.lerp(examples[other], examples, shares), torch.lerp(answers[other], answers, own[:, None])
