"""A federation over Flower: its SuperLink and SuperNodes carry our messages.

The only part of Fedloom that imports `flwr`, which the extra `flower` installs.
"""

from importlib.util import find_spec

from fedloom.core.errors import ConfigError

if find_spec("flwr") is None:
    raise ConfigError(
        "A federation over Flower needs flwr, which is not installed. Install it with: "
        "pip install 'fedloom[flower]'"
    )
