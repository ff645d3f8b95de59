"""Between the typed messages of `fedloom.core.messages` and what crosses.

Names, types and shapes follow from the record types and from what the server expects;
whatever else comes is refused, with a sentence that says what was expected.
"""

from fedloom.remote.codec.agreement import agreement, disagreement, settings_digest
from fedloom.remote.codec.ends import RunEnd, end_text, read_end
from fedloom.remote.codec.enrolment import (
    MOST_SAMPLES,
    TOKEN_BYTES,
    ReadEnrolment,
    TeamEnrolment,
    enrolment_tensors,
    read_enrolment,
)
from fedloom.remote.codec.fields import read_constants, refuse_others
from fedloom.remote.codec.moments import Moments
from fedloom.remote.codec.places import place_tensors, read_place
from fedloom.remote.codec.scores import (
    joined_sums,
    read_requests,
    read_sums,
    request_tensors,
    sums_of_team,
    sums_tensors,
    sums_to_send,
)
from fedloom.remote.codec.training import (
    common_digest,
    order_tensors,
    read_order,
    read_result,
    result_tensors,
    upload_ranges,
)

__all__ = [
    "MOST_SAMPLES",
    "TOKEN_BYTES",
    "Moments",
    "ReadEnrolment",
    "RunEnd",
    "TeamEnrolment",
    "agreement",
    "common_digest",
    "disagreement",
    "end_text",
    "enrolment_tensors",
    "joined_sums",
    "order_tensors",
    "place_tensors",
    "read_constants",
    "read_end",
    "read_enrolment",
    "read_order",
    "read_place",
    "read_requests",
    "read_result",
    "read_sums",
    "refuse_others",
    "request_tensors",
    "result_tensors",
    "settings_digest",
    "sums_of_team",
    "sums_tensors",
    "sums_to_send",
    "upload_ranges",
]
