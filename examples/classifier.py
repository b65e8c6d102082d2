"""PATE as a scikit-learn classifier: teachers vote on public examples, a student learns from the noisy votes.

python examples/classifier.py
"""

from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from pate import PATEClassifier


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    images = images / 16
    model = PATEClassifier(
        teachers=[(SVC(C=10), 2), (KNeighborsClassifier(1), 1)],  # with weights
        n_teachers=80,
        epsilon=5,  # what may be spent; the noise follows
        max_queries=200,
        student=SVC(C=10, probability=True),
        classes=range(10),  # public knowledge, not read off the labels
    )
    model.fit(images[:1200], digits[:1200], X_public=images[1200:1600])
    right = (model.predict(images[1600:]) == digits[1600:]).mean()
    print(f"right on {100 * right:.1f} % of the others, ε = {model.epsilon_:.2f} at δ = {model.delta_:g}")
    print(f"{(model.labels_ >= 0).sum()} labels were released; nothing else of the private images leaves the model")


if __name__ == "__main__":
    main()
