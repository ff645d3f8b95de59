"""What a finished run gives away to somebody who tries: attacks on its own models.

A failed attack proves nothing: another one may succeed. What is found, is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from fedloom.audit.canaries import bound_epsilon, shares_of
from fedloom.audit.inversion import invert, refusal, sees_totals_alone
from fedloom.audit.membership import infer_membership
from fedloom.audit.promise import Promise
from fedloom.audit.settings import AuditSettings
from fedloom.audit.subject import Subject, open_subject
from fedloom.core.wording import counted
from fedloom.engine.threads import on_threads
from fedloom.results.audit import Audit, Inversions, Membership, Planted

__all__ = [
    "Audit",
    "AuditSettings",
    "Subject",
    "audit",
    "foreseen",
    "open_subject",
]


def audit(
    subject: Subject,
    settings: AuditSettings | None = None,
    after_round: Callable[[int], None] | None = None,
) -> Audit:
    """Attack a finished run, and write what came of it to its directory.

    Args:
        subject: the run, as `open_subject` gives it.
        settings: how much is done.
        after_round: is told of every round of other runs that is over.
    """
    settings = settings if settings is not None else AuditSettings()
    began, remarks = time.monotonic(), []
    membership: tuple[Membership, ...] = ()
    planted: Planted | None = None
    inversions: Inversions | None = None
    promise = Promise.of(subject)
    if subject.simulation.attack:
        remarks.append(
            "The run has attackers, and the runs that an audit trains have none: what "
            "is found here compares its models with those of clients who all keep to "
            "the method."
        )
    with on_threads(subject.plan.engine.threads):
        if settings.references:
            remarks += list(_before_membership(subject))
            membership = infer_membership(
                subject, settings.references, settings.seed, after_round
            )
        if _has_plants(settings, promise, subject):
            planted = bound_epsilon(
                subject,
                settings.canaries,
                settings.seed,
                promise=promise,
                after_round=after_round,
            )
            if planted is not None and planted.refutes_ledger:
                remarks.append(_refuted(planted))
        elif settings.canaries:
            remarks += list(_without_plants(promise, subject))
        if settings.batch:
            why = refusal(subject)
            if why is None:
                inversions = invert(subject, settings.batch, settings.seed)
                remarks += list(_of_inversions(subject))
            else:
                remarks.append(why)
    audit = Audit(
        settings={
            "references": settings.references,
            "canaries": settings.canaries,
            "batch": settings.batch,
            "seed": settings.seed,
        },
        references=settings.references if membership else 0,
        membership=membership,
        planted=planted,
        inversions=inversions,
        remarks=tuple(remarks),
        seconds=time.monotonic() - began,
    )
    with subject.directory.hold():
        subject.directory.write_audit(audit)
    return audit


def _has_plants(
    settings: AuditSettings, promise: Promise | None, subject: Subject
) -> bool:
    """Whether there are runs with planted clients."""
    return settings.canaries > 0 and not list(_without_plants(promise, subject))


def _without_plants(promise: Promise | None, subject: Subject) -> Iterator[str]:
    """Why no client is planted, if none is."""
    if subject.simulation.shared() is None:
        yield (
            "The lower bound of epsilon is left out: the method has no shared model "
            "that planted clients could be looked for in."
        )
    elif promise is not None and promise.obstacle_to_planting:
        yield promise.obstacle_to_planting


def _of_inversions(subject: Subject) -> Iterator[str]:
    """What must be known of what the server sees."""
    if sees_totals_alone(subject):
        yield (
            "The server of a federation with these settings sees no single upload: "
            "with secure sums it learns the total of a round. So what it sees is a sum."
        )


def _refuted(planted: Planted) -> str:
    """That a run is less private than its account says, and what to do."""
    return (
        f"Epsilon is at least {planted.epsilon:.2f} by planted clients, and "
        f"{planted.ledger:.2f} by the run's ledger: by chance this happens to "
        f"{1 - planted.level:.0%} of audits at most. Audit again with another --seed; "
        "if it comes back, the run is less private than it says. Do not rely on it, "
        "and report it as a fault of fedloom."
    )


def _before_membership(subject: Subject) -> Iterator[str]:
    """What must be known of membership inference on these clients."""
    federation = subject.federation
    held_out = federation.validation.sizes + federation.test.sizes
    if federation.shares_test:
        held_out = federation.validation.sizes
    without = int((held_out == 0).sum())
    if without == federation.count:
        why = "they test on common samples" if federation.shares_test else "all train"
        yield (
            "Membership inference is left out: no client has samples of its own that "
            f"no model was trained on ({why}). Hold some out: split.test or "
            "split.validation."
        )
    elif without:
        yield f"{counted(without, 'client')} without held-out samples are left out."
    if federation.split is None or not federation.split.is_random:
        yield (
            "Training and held-out samples were not divided at random, so that the "
            "attack may tell them apart by how they differ, not by what was learnt."
        )
    if 0 < int(held_out.sum()) < 100:
        yield (
            "There are fewer than 100 held-out samples: 1 % false positives are none."
        )


def foreseen(subject: Subject, settings: AuditSettings) -> str:
    """What an audit will do and about how long it takes, before it starts."""
    promise, runs = Promise.of(subject), settings.references
    if _has_plants(settings, promise, subject):
        runs += len(shares_of(settings.canaries, subject.federation.count))
    if not runs:
        return "An audit without other runs: a minute or so."
    most = runs * max(subject.seconds, 1.0)
    return (
        f"{counted(runs, 'run')} like this one will be trained, which took "
        f"{_span(subject.seconds)}: at most about {_span(most)}, less where they share "
        "passes."
    )


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
