"""Which version of Fedloom this is; the package takes its number from here."""

VERSION = "0.1.0"
