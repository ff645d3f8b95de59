"""Under which terms the named datasets may be used; the same words as docs/data.md."""

from __future__ import annotations

from fedloom.data import SOURCES

LICENCES = {name: kind.licence for name, kind in SOURCES.items() if kind.licence}
"""By the name of the source; one that is not here is drawn, or the user's own."""
