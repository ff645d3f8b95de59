"""Which models a client with secure sums has answered for: one at each place of a run.

    RUN/secure/answered.json    by what it was asked for and the number of the exchange,
                                the digest of what it was asked

What a client says of a model in the open, its loss and its scores, is a number of this
client alone. Of many models made for the purpose such numbers give the gradient, and so
what the client adds to a sum. So it is asked once at each place of the run that its
settings know, and of one model; the same question again is answered alike. What it was
asked is on disk before it answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from fedloom.core.digests import read_checked_json, write_checked_json
from fedloom.core.errors import MessageError
from fedloom.core.records import tensors_digest
from fedloom.core.task import Task
from fedloom.remote.wire import Header, WireMessage

_REMEMBERED = 64
"""Places that are known of each kind, the last ones; of none before is there an answer.
"""
_SHARED = "model.shared"


class AnsweredModels:
    """What a client was asked for in the open.

    Args:
        folder: of the client's own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def refuse_other_order(self, message: WireMessage) -> None:
        """Refuse an order for another model than the one that was trained there.

        A later session of the server may call it to a sum with others.

        Raises:
            MessageError: It is one.
        """
        asked = _without(message, ("secure.clients", "instruction.uploads"))
        self._refuse_other(message.header, {"train": asked})

    def refuse_other_score(self, message: WireMessage, task: Task) -> None:
        """Refuse to score other models than those that were scored there.

        Which parts of the data they are scored on may change. A server also asks for
        the run's first model, at its end, to see whether there was any progress.

        Raises:
            MessageError: They are others.
        """
        asked = {"score": _without(message, ("instruction.parts", _SHARED))}
        shared = message.tensors.get(_SHARED)
        if shared is not None and not shared.equal(task.start.cpu()):
            asked["score of the shared model"] = tensors_digest({_SHARED: shared})
        self._refuse_other(message.header, asked)

    def _refuse_other(self, header: Header, asked: dict[str, str]) -> None:
        file = self._folder / header.run / "secure" / "answered.json"
        known: dict[str, dict[str, str]] = {}
        if file.is_file():
            what = "the models that were answered for"
            known = read_checked_json(file, what, ("answered",))["answered"]
        joined = dict(known)
        for kind, digest in asked.items():
            of_kind = known.get(kind, {})
            is_forgotten = len(of_kind) >= _REMEMBERED and header.number < min(
                map(int, of_kind)
            )
            if is_forgotten or of_kind.get(str(header.number), digest) != digest:
                raise MessageError(
                    f"{header.name}: {header.place}: expected the model that it was "
                    f"asked for there before ({kind}), found another. With secure sums "
                    "a client answers for one model at each place of a run, for what "
                    "it says of several could tell what it adds. Resume the server "
                    "from its last checkpoint, or start a new run with another seed."
                )
            joined[kind] = _last({**of_kind, str(header.number): digest})
        if joined != known:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_checked_json(file, {"answered": joined})


def _without(message: WireMessage, names: Iterable[str]) -> str:
    """The digest of what a message asks, but for some tensors."""
    left_out = set(names)
    tensors: dict[str, Tensor] = {
        name: tensor for name, tensor in message.tensors.items() if name not in left_out
    }
    return tensors_digest(tensors)


def _last(of_kind: dict[str, str]) -> dict[str, str]:
    """Of places by number, those that are remembered."""
    numbers = sorted(of_kind, key=int)[-_REMEMBERED:]
    return {number: of_kind[number] for number in numbers}
