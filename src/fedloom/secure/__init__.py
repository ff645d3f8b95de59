"""Secure sums: a server learns the total of what clients send, and no single summand.

The double masking of Bonawitz et al., "Practical Secure Aggregation for
Privacy-Preserving Machine Learning", CCS 2017, in the variant with signed keys and a
consistency round. Nobody has audited this code.

    stage   a client sends                               after it has seen
    keys    its public keys of this sum, signed          its order, who is called
    share   shares of its two secrets, sealed for each   the keys of all, U1
    mask    its summand under masks                      the shares for it; from U2
    agree   its signature of who is in, who dropped out  who is in (U3), who is not
    open    one share of each: of the own mask of who    at least `threshold`
            is in, of the masking key of who is not      signatures of the same
"""

from importlib.util import find_spec

from fedloom.core.errors import ConfigError

if find_spec("cryptography") is None:
    raise ConfigError(
        "Secure sums need cryptography, which is not installed. Install it with: "
        "pip install 'fedloom[privacy]'"
    )
