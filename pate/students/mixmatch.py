"""MixMatch (Berthelot et al., 2019): guess labels of augmented examples, sharpen them, mix all examples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.students._neural import NeuralStudent

if TYPE_CHECKING:
    import torch

    from pate.networks.training import Draws, ProgressCallback


class MixMatch(NeuralStudent):
    """Each step: the network's mean guess over `views` augmentations of an unlabelled example, sharpened by
    `temperature`, is its label; labelled and unlabelled examples are then mixed in pairs (MixUp with Beta(`alpha`)).
    The labelled loss is cross-entropy, the unlabelled one a squared distance whose weight rises to
    `unlabelled_weight` over the first `ramp` of the steps.

    `class_mix` is how often classes come up among unlabelled examples: 'even', as among the 'labels', or 'free' to be
    what the network says; where it is known, guesses are scaled towards it. `distrust` is for wrong labels: as
    training goes on, a label is blended with the averaged network's own guess, by up to that share. `depth` is how many
    convolutions there are, 3 or 4. `patience` ends training when the unlabelled loss has not fallen for so many times
    50 steps.
    """

    def __init__(
        self,
        steps: int = 1000,
        batch_size: int = 32,
        views: int = 2,
        temperature: float = 0.5,
        alpha: float = 0.75,
        unlabelled_weight: float = 50.0,
        ramp: float = 0.4,
        learning_rate: float = 2e-3,
        weight_decay: float = 0.02,
        ema: float = 0.998,
        label_smoothing: float = 0.0,
        distrust: float = 0.5,
        class_mix: str = "free",
        augmentation: dict[str, Any] | None = None,
        channels: int = 16,
        hidden: int = 128,
        depth: int = 3,
        patience: int | None = None,
        device: str = "auto",
        random_state: int = 0,
    ) -> None:
        self.steps = steps
        self.batch_size = batch_size
        self.views = views
        self.temperature = temperature
        self.alpha = alpha
        self.unlabelled_weight = unlabelled_weight
        self.ramp = ramp
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.ema = ema
        self.label_smoothing = label_smoothing
        self.distrust = distrust
        self.class_mix = class_mix
        self.augmentation = augmentation
        self.channels = channels
        self.hidden = hidden
        self.depth = depth
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

        from pate.networks.training import ClassMix, Training, cosine_rate, draw_batch

        generator, augment, network, average = self._begin()
        optimiser = torch.optim.AdamW(
            network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )
        targets = smoothed(labels, len(self.classes_), self.label_smoothing)
        mix = ClassMix(self.class_mix, labels, len(self.classes_)).to(pool.device)

        def step(number: int) -> tuple[torch.Tensor, torch.Tensor]:
            cosine_rate(optimiser, self.learning_rate, number, self.steps)
            rows = drawn.batch(self.batch_size, generator)
            few, given = augment(labelled[rows]), targets[rows]
            many = pool[draw_batch(len(pool), self.batch_size, generator)]
            views = augment(torch.cat([many] * self.views))
            rise = min(1.0, number / max(1.0, self.ramp * self.steps))
            with torch.no_grad():
                guess = network(views).softmax(1).view(self.views, len(many), -1).mean(0)
                guess = sharpened(mix.align(guess), self.temperature).repeat(self.views, 1)
                if self.distrust:
                    own = self.network_(few).softmax(1)
                    given = torch.lerp(given, own, self.distrust * rise)
            examples, answers = mixed_up(torch.cat([few, views]), torch.cat([given, guess]), self.alpha, generator)
            scores = network(examples).log_softmax(1)
            n = len(few)
            loss = -(answers[:n] * scores[:n]).sum(1).mean()
            unlabelled = (scores[n:].exp() - answers[n:]).square().mean()
            optimiser.zero_grad()
            (loss + rise * self.unlabelled_weight * unlabelled).backward()
            optimiser.step()
            average.update_parameters(network)
            return loss, unlabelled

        training = Training({"network": network, "average": average, "mix": mix}, {"optimiser": optimiser}, generator)
        self.steps_done_ = training.run(
            step,
            self.steps,
            watch_from=int(self.ramp * self.steps),
            patience=self.patience,
            progress=progress,
            checkpoint=checkpoint,
            identity=identity,
        )


def smoothed(labels: torch.Tensor, n_classes: int, smoothing: float) -> torch.Tensor:
    """Labels as distributions, `smoothing` of the mass spread over all classes."""
    from torch.nn.functional import one_hot

    return one_hot(labels, n_classes).float() * (1 - smoothing) + smoothing / n_classes


def sharpened(guess: torch.Tensor, temperature: float) -> torch.Tensor:
    """The distribution with its entropy lowered: powers of 1/temperature, normalised."""
    powers = guess.pow(1 / temperature)
    return powers / powers.sum(1, keepdim=True)


def mixed_up(
    examples: torch.Tensor, answers: torch.Tensor, alpha: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each example blended with a random other one, itself the larger share; answers alike."""
    import torch

    other = torch.randperm(len(examples), generator=generator)
    own = _beta(alpha, len(examples), generator).to(examples.device)
    own = torch.maximum(own, 1 - own)
    shares = own.view(-1, *[1] * (examples.ndim - 1))
    return torch.lerp(examples[other], examples, shares), torch.lerp(answers[other], answers, own[:, None])


def _beta(alpha: float, n: int, generator: torch.Generator) -> torch.Tensor:
    """Beta(alpha, alpha) draws, as a share of two gamma draws."""
    import torch

    gammas = torch._standard_gamma(torch.full((2, n), alpha), generator=generator)
    return gammas[0] / gammas.sum(0)
