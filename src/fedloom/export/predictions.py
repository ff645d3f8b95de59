"""Predictions as a table."""

from __future__ import annotations

from torch import Tensor

from fedloom.data.dataset import Dataset


def prediction_rows(outputs: Tensor, dataset: Dataset) -> list[dict[str, object]]:
    """What a model said of each sample.

    Args:
        outputs: (n, classes) probabilities; for a regression (n,) or (n, k) numbers.
        dataset: what it was trained on, which names the classes.

    Returns:
        `prediction`, and for classes the probability of each, `p_NAME`.
    """
    numbers = outputs.reshape(len(outputs), -1).double()
    if dataset.classes is None:
        names = [f"prediction_{k}" for k in range(numbers.shape[1])]
        names = names if len(names) > 1 else ["prediction"]
        return [dict(zip(names, row, strict=True)) for row in numbers.tolist()]
    classes = dataset.class_names or tuple(map(str, range(dataset.classes)))
    # A model may have more outputs than there are classes; those have no name.
    named = numbers[:, : len(classes)]
    columns = [f"p_{name}" for name in classes]
    return [
        {"prediction": classes[best], **dict(zip(columns, row, strict=True))}
        for best, row in zip(named.argmax(1).tolist(), named.tolist(), strict=True)
    ]
