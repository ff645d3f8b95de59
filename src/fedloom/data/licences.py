"""Under which terms the named datasets may be used; the same words as docs/data.md."""

from __future__ import annotations

LICENCES: dict[str, str] = {
    "cifar10": "research use",
    "cifar100": "research use",
    "digits": "CC BY 4.0",
    "emnist-byclass": "NIST, public",
    "emnist-letters": "NIST, public",
    "emnist-letters-aj": "NIST, public",
    "fashion-mnist": "MIT",
    "femnist": "BSD 2-clause (LEAF), NIST data public",
    "fsdd": "CC BY-SA 4.0",
    "heart-disease": "CC BY 4.0; name Janosi, Steinbrunn, Pfisterer, Detrano",
    "landmine": "research use",
    "mnist": "CC BY-SA 3.0",
    "school": "research use",
    "sent140": "terms of the source; not to be passed on",
    "shakespeare": "public domain",
    "speech-commands": "CC BY 4.0",
    "sun397": "research use",
    "wake-word": "CC BY-SA 4.0",
}
"""By the name of the source; one that is not here is drawn, or the user's own."""
