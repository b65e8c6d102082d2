"""A PATE classifier that protects persons, each with several records; in a pipeline and a cross-validation by persons.

python examples/persons.py
"""

import numpy as np
from sklearn import config_context
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from pate import PATEClassifier


def main() -> None:
    rng = np.random.default_rng(0)
    X, X_public, persons = rng.normal(size=(900, 2)), rng.normal(size=(60, 2)), np.repeat(np.arange(300), 3)
    y = np.where(X[:, 0] > 0, "right", "left")
    with config_context(enable_metadata_routing=True):
        model = PATEClassifier(voters="neighbours", epsilon=2, max_queries=10, classes=["left", "right"])
        model.set_fit_request(ids=True, X_public=True)
        pipeline = make_pipeline(FunctionTransformer(np.tanh), model)  # nothing that is fitted to private records
        given = {"ids": persons, "groups": persons, "X_public": np.tanh(X_public)}  # nobody is in training and test
        found = cross_validate(pipeline, X, y, cv=GroupKFold(2), params=given, return_estimator=True)
    spent = [one[-1].epsilon_ for one in found["estimator"]]
    print(f"right on {100 * found['test_score'].mean():.0f} % of other persons' records")
    print(f"ε = {' + '.join(f'{one:.2f}' for one in spent)}: each fit is a release; all records of a person together")


if __name__ == "__main__":
    main()
