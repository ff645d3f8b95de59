"""Which version of Fedloom this is."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("fedloom")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0.1.0"
