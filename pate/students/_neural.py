"""What the network students share: the contract around a training loop, and prediction with averaged weights.

A student that also learns from its own guesses may lose what the labels alone would have taught it. Constant answers
are a resting place of every loss on unlabelled examples: a network that gives them agrees with itself. Where its
guesses count before it has learned enough, or labels are skewed, it drifts there, and `label_noise`, which replaces
labels by its guesses, takes away what would lead it back. Its own losses look like success; labels tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from pate.errors import DataError
from pate.mechanisms import UNANSWERED
from pate.networks._process import one_thread
from pate.storage._files import sizes, whole_numbers

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim.swa_utils import AveragedModel

    from pate.networks._architectures import Classifier
    from pate.networks._training import Augmentation, BatchSampler, ClassPrior, ProgressCallback

    Learn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
    """Gives both losses of labelled examples, their labels, unlabelled examples and how far the ramp has come."""
    Learner = tuple[Learn, dict[str, nn.Module], dict[str, torch.optim.Optimizer]]
    """What learns from a batch, further modules that change while it does, and the optimisers, by name."""

_PREDICTED_AT_ONCE = 1024
_REFERENCE_STEPS = 0.2  # of its own, on labelled batches alone, each of two: together about an eighth of its time
_MIN_EXAMPLES = 9  # with fewer, no difference is more than chance
_STANDARD_ERRORS = 2.0
_MIN_LOSS = 0.1
FELL_BACK = (
    "the student's guesses at unlabelled examples led it away from its labels, so it was trained on the labels alone; "
    "more steps, or class_prior: labels or even, may do better"
)


class TrainingStart(NamedTuple):
    """What training begins with: what it draws from, its augmentation, and a fresh network with its average."""

    generator: torch.Generator
    augment: Augmentation
    network: Classifier
    average: AveragedModel


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralStudent(ClassifierMixin, BaseEstimator):
    """A network that learns from few labels and many unlabelled examples; subclasses say what a step of training does.

    Its fields are the parameters of the constructor.

    Images (height × width, or × channels, 8 pixels or more per side) go through convolutions, anything else through a
    dense net. Deterministic for given data and `random_state` on one kind of machine.
    """

    accepts_images = True
    normed = "batch"
    fell_back_ = cast("str | None", None)  # why it was trained on the labels alone in the end, if it was

    steps: int
    batch_size: int = 32
    temperature: float = 0.5
    alpha: float = 0.0
    ramp: float = 0.4
    learning_rate: float = 2e-3
    ema: float = 0.998
    label_smoothing: float = 0.0
    label_noise: float = 0.5
    class_prior: str = "free"
    augmentation: dict[str, Any] | None = None
    channels: int = 16
    hidden: int = 128
    depth: int = 3
    patience: int | None = None
    device: str = "auto"
    random_state: int = 0

    def fit(
        self,
        X: NDArray,
        y: NDArray[np.int64],
        X_unlabelled: NDArray | None = None,
        *,
        sample_weight: NDArray[np.float64] | None = None,
        progress: ProgressCallback | None = None,
        checkpoint: Path | None = None,
    ) -> Self:
        """Learn from `X` with labels `y`, where −1 counts as unlabelled, and from `X_unlabelled`.

        With `sample_weight`, labelled examples are drawn into batches that much more or less often.
        `progress` is told step, losses and time left. With a folder `checkpoint`, an interrupted fit on the same
        data and parameters goes on from there and ends in the same weights.
        """
        import torch

        from pate.networks._training import BatchSampler

        X, y = np.asarray(X, dtype=np.float32), np.asarray(y)
        pool = X if X_unlabelled is None else np.concatenate([X, np.asarray(X_unlabelled, dtype=np.float32)])
        answered = (y != UNANSWERED) & (True if sample_weight is None else np.asarray(sample_weight) > 0)
        if not answered.any():
            raise DataError("no example has a label: there is nothing to learn from")
        self.classes_, coded = np.unique(y[answered], return_inverse=True)
        self.fell_back_ = None
        self.shape_ = list(X.shape[1:])
        self._standardise_by(pool)
        if len(self.classes_) < 2:
            return self
        labels = torch.from_numpy(coded.reshape(-1)).to(self._device())
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)[answered]
        identity = self._identity(X, y, pool, *([] if weights is None else [weights]))
        drawn = BatchSampler(len(labels), None if weights is None else torch.from_numpy(weights))
        with one_thread():
            examples = self._tensor(X[answered])
            self._train(examples, labels, drawn, self._tensor(pool), progress, checkpoint, identity)
            if self._has_collapsed(X[answered], examples, labels, weights):
                self.network_ = self._taught_by_labels(examples, labels, drawn, self.steps)
                self.fell_back_ = FELL_BACK
        return self

    def predict_proba(self, X: NDArray) -> NDArray[np.float32]:
        """Probabilities, a column for each of `classes_`."""
        X = np.asarray(X, dtype=np.float32)
        if list(X.shape[1:]) != self.shape_:
            raise DataError(f"examples have shape {X.shape[1:]}, this student learned from {tuple(self.shape_)}")
        if len(self.classes_) < 2 or len(X) == 0:
            return np.ones((len(X), len(self.classes_)), dtype=np.float32)
        return _by_blocks(self.network_, self._tensor(X)).softmax(1).cpu().numpy()

    def features(self, X: NDArray) -> NDArray[np.float32]:
        """What the last layer sees of each example: features that public data and released labels have taught."""
        X = np.asarray(X, dtype=np.float32)
        if len(self.classes_) < 2 or len(X) == 0:
            return np.zeros((len(X), self.hidden), dtype=np.float32)
        return _by_blocks(self.network_.features, self._tensor(X)).flatten(1).cpu().numpy()

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        """The likeliest class of each example."""
        return self.classes_[self.predict_proba(X).argmax(1)].astype(np.int64)

    def weights(self) -> dict[str, torch.Tensor]:
        """The averaged weights, by name; none if there was one class only."""
        if len(self.classes_) < 2:
            return {}
        return {name: value.contiguous().cpu() for name, value in self.network_.state_dict().items()}

    def learned(self) -> dict[str, Any]:
        """All else that prediction needs, as plain values."""
        return {
            "classes": self.classes_.tolist(),
            "shape": self.shape_,
            "mean": self.mean_.tolist(),
            "scale": self.scale_.tolist(),
            **({"fell_back": self.fell_back_} if self.fell_back_ else {}),
        }

    def restore(self, weights: dict[str, torch.Tensor], learned: dict[str, Any]) -> Self:
        """The fitted student again, from `weights()` and `learned()`; ValueError if those do not belong together."""
        from pate.networks._architectures import device_anew, looks_like_images
        from pate.storage._files import check_weights

        self.device = device_anew(self.device)
        self.classes_ = np.asarray(whole_numbers(learned["classes"], "classes"), dtype=np.int64)
        self.shape_ = list(sizes(learned["shape"], "shape"))
        self.mean_, self.scale_ = (np.asarray(learned[name], dtype=np.float32) for name in ("mean", "scale"))
        self.fell_back_ = note if isinstance(note := learned.get("fell_back"), str) else None
        shape = tuple(self.shape_[2:] if looks_like_images(self.shape_) else self.shape_)
        if not self.mean_.shape == self.scale_.shape == shape:
            raise ValueError("mean and scale are not those of its examples")
        if not (np.isfinite(self.mean_) & np.isfinite(self.scale_) & (self.scale_ > 0)).all():
            raise ValueError("mean and scale must be finite numbers, scale above 0")
        if len(self.classes_) >= 2:
            check_weights(self._network, weights)
            self.network_ = self._build().eval().requires_grad_(False)
            self.network_.load_state_dict(weights)
        return self

    def _train(
        self,
        labelled: torch.Tensor,
        labels: torch.Tensor,
        drawn: BatchSampler,
        pool: torch.Tensor,
        progress: ProgressCallback | None,
        checkpoint: Path | None,
        identity: str,
    ) -> None:
        """Set `network_` and train it."""
        from torch.nn.functional import one_hot

        from pate.networks._training import ClassPrior, Training, cosine_rate, draw_batch

        start = self._begin()
        generator, augment, network, average = start
        n_classes, smoothing = len(self.classes_), self.label_smoothing
        targets = one_hot(labels, n_classes).float() * (1 - smoothing) + smoothing / n_classes
        prior = ClassPrior(self.class_prior, labels, n_classes, drawn.weights).to(pool.device)
        learn, modules, optimisers = self._learner(start, prior, pool)

        def step(number: int) -> tuple[torch.Tensor, torch.Tensor]:
            for optimiser in optimisers.values():
                cosine_rate(optimiser, self.learning_rate, number, self.steps)
            rows = drawn.batch(self.batch_size, generator)
            few, given = augment(labelled[rows]), targets[rows]
            many = pool[draw_batch(len(pool), self.batch_size, generator)]
            losses = learn(few, given, many, min(1.0, number / max(1.0, self.ramp * self.steps)))
            average.update_parameters(network)
            return losses

        modules = {"network": network, "average": average, "mix": prior} | modules
        self.steps_done_ = Training(modules, optimisers, generator).run(
            step,
            self.steps,
            watch_from=int(self._watch_from * self.steps),
            patience=self.patience,
            progress=progress,
            checkpoint=checkpoint,
            identity=identity,
        )

    @property
    def _watch_from(self) -> float:
        """The share of the steps after which an unlabelled loss that no longer falls may end the training."""
        return self.ramp

    def _learner(self, start: TrainingStart, prior: ClassPrior, pool: torch.Tensor) -> Learner:
        raise NotImplementedError

    def _has_collapsed(
        self, X: NDArray, examples: torch.Tensor, labels: torch.Tensor, weights: NDArray[np.float64] | None
    ) -> bool:
        """Whether the network agrees with labels less than others do that were taught by the rest of them alone.

        Two of those, each tried on a third that it never saw; see `falls_short` for the rule. All labels are
        released, so it costs no privacy. Training is over by then: it is the same with this as without.
        """
        import torch

        from pate.networks._training import BatchSampler

        third, example = thirds(X, self.random_state)
        if example.max() + 1 < _MIN_EXAMPLES:
            return False
        weights = np.ones(len(X)) if weights is None else weights
        steps = max(1, int(_REFERENCE_STEPS * self.steps))
        own = _by_blocks(self.network_, examples).argmax(1) == labels
        theirs = torch.zeros_like(own)
        for number in (0, 1):
            kept, back = (torch.from_numpy(np.flatnonzero(rows)) for rows in (third != number, third == number))
            drawn = BatchSampler(len(kept), torch.from_numpy(weights)[kept])
            reference = self._taught_by_labels(examples[kept], labels[kept], drawn, steps)
            theirs[back] = _by_blocks(reference, examples[back]).argmax(1) == labels[back]
        tried = third < 2
        agree, agreed = (where.cpu().numpy()[tried] for where in (own, theirs))
        return falls_short(agree, agreed, labels.cpu().numpy()[tried], weights[tried], example[tried])

    def _taught_by_labels(
        self, labelled: torch.Tensor, labels: torch.Tensor, drawn: BatchSampler, steps: int
    ) -> Classifier:
        """A copy of the network after `steps` steps on labelled batches alone, its weights averaged; not `network_`."""
        import torch
        from torch.nn.functional import cross_entropy

        from pate.networks._training import cosine_rate

        mine = self.network_
        generator, augment, network, average = self._begin()
        taught, self.network_ = self.network_, mine
        optimiser = torch.optim.AdamW(
            network.parameters(), lr=self.learning_rate, weight_decay=getattr(self, "weight_decay", 0.0), fused=True
        )
        for number in range(steps):
            cosine_rate(optimiser, self.learning_rate, number, steps)
            rows = drawn.batch(max(2, self.batch_size), generator)  # batch norm needs two
            scores = network(augment(labelled[rows]))
            optimiser.zero_grad()
            cross_entropy(scores, labels[rows], label_smoothing=self.label_smoothing).backward()
            optimiser.step()
            average.update_parameters(network)
        return taught

    def _begin(self) -> TrainingStart:
        """What training begins with; the average is `network_`."""
        import torch

        from pate.networks._architectures import looks_like_images, seeded
        from pate.networks._training import Strength, augmentation, moving_average

        generator = torch.Generator().manual_seed(self.random_state)
        augment = augmentation(Strength.of(self.augmentation), looks_like_images(self.shape_), generator)
        network = seeded(self._build, self.random_state).train()
        average = moving_average(network, self.ema)
        self.network_ = cast("Classifier", average.module)
        return TrainingStart(generator, augment, network, average)

    def _build(self) -> Classifier:
        import torch

        return self._network().to(self._device()).to(memory_format=torch.channels_last)  # as images are

    def _network(self) -> Classifier:
        from pate.networks._architectures import Classifier

        return Classifier(self.shape_, len(self.classes_), self.channels, self.hidden, self.normed, self.depth)

    def _device(self) -> torch.device:
        from pate.networks._architectures import resolve_device

        return resolve_device(self.device, "student.params.device")

    def _standardise_by(self, pool: NDArray) -> None:
        """Mean and deviation of the public examples: of each feature of a table, of each channel of images."""
        from pate.networks._architectures import looks_like_images

        axes = (0, 1, 2) if looks_like_images(self.shape_) else (0,)
        deviation = np.asarray(pool.std(axes, dtype=np.float64))
        self.mean_ = np.asarray(pool.mean(axes, dtype=np.float64), dtype=np.float32)
        self.scale_ = np.asarray(np.where(deviation > 1e-6, deviation, 1.0), dtype=np.float32)

    def _tensor(self, X: NDArray) -> torch.Tensor:
        from pate.networks._architectures import example_tensor, looks_like_images

        standard = self.mean_, self.scale_
        return example_tensor(X, self._device(), standard=standard, images=looks_like_images(self.shape_))

    def _identity(self, *arrays: NDArray) -> str:
        """What a checkpoint belongs to."""
        digest = blake2b(repr((type(self).__name__, sorted(self.get_params().items()))).encode(), digest_size=16)
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _by_blocks(network: Callable[[torch.Tensor], torch.Tensor], examples: torch.Tensor) -> torch.Tensor:
    """What a network gives for examples, so many at once."""
    import torch

    with one_thread(), torch.no_grad():
        return torch.cat([network(block) for block in examples.split(_PREDICTED_AT_ONCE)])


def equal_examples(X: NDArray) -> NDArray[np.int64]:
    """The number of the example that each row is, from 0 on: rows that are equal have the same."""
    digests = [blake2b(row.tobytes(), digest_size=16).digest() for row in np.ascontiguousarray(X)]
    return np.unique(np.array(digests, dtype="V16"), return_inverse=True)[1].reshape(-1).astype(np.int64)


def thirds(X: NDArray, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The third (0, 1 or 2) that each row belongs to, at random, and the number of the example that it is.

    An example that comes several times, with one label each, is in one third with all of them.
    """
    example = equal_examples(X)
    return (np.random.default_rng(seed).permutation(example.max() + 1) % 3)[example], example


def falls_short(
    own: NDArray[np.bool_],
    reference: NDArray[np.bool_],
    labels: NDArray[np.int64],
    weights: NDArray[np.float64],
    example: NDArray[np.int64],
) -> bool:
    """Whether the student agrees with labels less than references do that never saw them (they saw others).

    `own` and `reference` say where each agrees. It falls short if the difference, in weight of labels, is more than
    two standard errors, example by example, and more than a tenth of what the reference has beyond always saying the
    commonest class: labels may be wrong alike for examples that are alike, and to see through that is no loss. It also
    does if it agrees with no more labels than the commonest class would: there is nothing to lose then.
    """
    commonest = np.bincount(labels, weights).max()
    if (weights * own).sum() <= commonest:
        return True
    lost = np.bincount(example, weights * (reference.astype(np.float64) - own))
    beyond = float((weights * reference).sum() - commonest)
    return bool(lost.sum() > max(_STANDARD_ERRORS * np.sqrt((lost**2).sum()), _MIN_LOSS * beyond))
