"""The GPU kernel behind `fedloom.engine.dense`; importing it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rough(values):  # type: ignore[no-untyped-def]
    """Numbers cut to the bits that tensor cores take."""
    return (values.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def descend(  # type: ignore[no-untyped-def]
    first,
    first_bias,
    head,
    head_bias,
    inputs,
    targets,
    samples,
    mask,
    steps,
    shift,
    scale,
    pace,
    loss,
    used,
    clients,
    clip,
    decay,
    FEATURES: tl.constexpr,
    HIDDEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BATCH: tl.constexpr,
    WIDTH: tl.constexpr,
    ENDS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    CLIPS: tl.constexpr,
    DECAYS: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """All steps of one client: SGD on the cross-entropy of a dense network.

    The weights of the first layer stay in memory and are met once a step: a tile of
    them takes the update of the step before and goes at once into the product of the
    next. All else stays in registers. Without a hidden layer (HIDDEN = 0) the first
    layer is the head.

    In the order of their parameters: (C, W, F), (C, W), (C, O, W), (C, O) parameters;
    (N, F) inputs and (N,) targets of all samples; (S, C, B) which samples, and 1 where
    there is one; (C,) steps of each client; (C,) shift and scale of its inputs; the
    learning rate; (C,) where losses and numbers of samples are added. Of W units WIDTH
    are computed, ENDS of O outputs, ROWS of a batch of B; all powers of two.

    With PRECISION "tf32x3" products are as accurate as in float32: each factor is the
    sum of two that tensor cores take exactly. Inputs that are small whole numbers
    (WHOLE, without a shift) are such already, and their scale is taken out of the sums.
    """
    client = tl.program_id(0).to(tl.int64)
    count = tl.load(steps + client)
    if count == 0:
        return
    units: tl.constexpr = HIDDEN if HIDDEN > 0 else OUTPUTS
    rate = tl.load(pace)
    low, span = tl.load(shift + client), tl.load(scale + client)
    u, o = tl.arange(0, WIDTH), tl.arange(0, ENDS)
    b, f = tl.arange(0, ROWS), tl.arange(0, TILE)
    is_unit, is_output, is_row = u < units, o < OUTPUTS, b < BATCH
    first += client * units * FEATURES
    first_bias += client * units
    weights = first + u[:, None] * FEATURES
    bias = tl.load(first_bias + u, mask=is_unit, other=0.0)
    if HIDDEN > 0:
        head += client * OUTPUTS * HIDDEN
        head_bias += client * OUTPUTS
        places = head + o[:, None] * HIDDEN + u[None, :]
        is_place = is_output[:, None] & is_unit[None, :]
        above = tl.load(places, mask=is_place, other=0.0)
        above_bias = tl.load(head_bias + o, mask=is_output, other=0.0)
    else:
        above = tl.zeros([ENDS, WIDTH], tl.float32)
        above_bias = tl.zeros([ENDS], tl.float32)

    back = tl.zeros([WIDTH, ROWS], tl.float32)
    back_rest = back
    kept = 1.0
    losses, seen = 0.0, 0.0
    old = tl.zeros([ROWS], tl.int64)
    for step in range(count + 1):
        at = (tl.minimum(step, count - 1) * clients + client) * BATCH + b
        new = tl.load(samples + at, mask=is_row, other=0)
        ahead = tl.zeros([WIDTH, ROWS], tl.float32)
        gram = tl.zeros([ROWS, ROWS], tl.float32)
        left = inputs + old[:, None] * FEATURES + f[None, :]
        right = inputs + new[:, None] * FEATURES + f[None, :]
        next_x = tl.load(left, mask=f[None, :] < FEATURES, other=0)
        next_y = tl.load(right, mask=f[None, :] < FEATURES, other=0)
        for start in range(0, FEATURES, TILE):
            here = start + f[None, :]
            is_here = here < FEATURES
            is_weight = is_unit[:, None] & is_here
            w = tl.load(weights + here, mask=is_weight, other=0.0)
            x, y = next_x.to(tl.float32), next_y.to(tl.float32)
            is_there = here + TILE < FEATURES  # asked for before it is needed
            next_x = tl.load(left + start + TILE, mask=is_there, other=0)
            next_y = tl.load(right + start + TILE, mask=is_there, other=0)
            if DECAYS:
                w = w * kept
            if WHOLE:
                change_of = tl.dot(back, x, input_precision="tf32")
                w += tl.dot(back_rest, x, change_of, input_precision="tf32")
                tl.store(weights + here, w, mask=is_weight)
                rough = _rough(w)
                turned = tl.trans(y)
                ahead = tl.dot(rough, turned, ahead, input_precision="tf32")
                ahead = tl.dot(w - rough, turned, ahead, input_precision="tf32")
                if CLIPS:
                    gram = tl.dot(y, turned, gram, input_precision="tf32")
            else:
                x = tl.where(is_here, (x - low) / span, 0.0)
                y = tl.where(is_here, (y - low) / span, 0.0)
                w += tl.dot(back, x, input_precision=PRECISION)
                tl.store(weights + here, w, mask=is_weight)
                turned = tl.trans(y)
                ahead = tl.dot(w, turned, ahead, input_precision=PRECISION)
                if CLIPS:
                    gram = tl.dot(y, turned, gram, input_precision=PRECISION)
        if WHOLE:
            ahead = ahead / span
            gram = gram / (span * span)
        tl.debug_barrier()  # other threads read these weights in the next step
        if step < count:
            weight = tl.load(mask + at, mask=is_row, other=0.0)
            label = tl.load(targets + new)
            hidden = ahead + bias[:, None]
            if HIDDEN > 0:
                active = tl.maximum(hidden, 0.0)
                logits = (
                    tl.dot(above, active, input_precision=PRECISION)
                    + above_bias[:, None]
                )
            else:
                active = hidden
                logits = hidden
            logits = tl.where(is_output[:, None], logits, float("-inf"))
            top = tl.max(logits, axis=0)
            powers = tl.exp(logits - top[None, :])
            total = tl.sum(powers, axis=0)
            is_label = o[:, None] == label[None, :]
            chosen = tl.sum(tl.where(is_label, logits, 0.0), axis=0)
            size = tl.sum(weight, axis=0)
            share = weight / tl.maximum(size, 1.0)
            losses += tl.sum(share * (tl.log(total) + top - chosen), axis=0)
            seen += size
            error = (powers / total[None, :] - is_label.to(tl.float32)) * share[None, :]
            pull = rate
            if HIDDEN > 0:
                down = tl.dot(tl.trans(above), error, input_precision=PRECISION)
                down = tl.where(hidden > 0.0, down, 0.0)
                change = tl.dot(error, tl.trans(active), input_precision=PRECISION)
                bias_change = tl.sum(down, axis=1)
                above_change = tl.sum(error, axis=1)
            else:
                down = error
                change = above
                bias_change = tl.sum(error, axis=1)
                above_change = above_bias
            if CLIPS:
                pairs = tl.dot(tl.trans(down), down, input_precision=PRECISION)
                square = tl.sum(tl.sum(gram * pairs, axis=1), axis=0)
                square += tl.sum(bias_change * bias_change, axis=0)
                if HIDDEN > 0:
                    square += tl.sum(tl.sum(change * change, axis=1), axis=0)
                    square += tl.sum(above_change * above_change, axis=0)
                norm = tl.sqrt(tl.maximum(square, 0.0))
                pull = rate * tl.minimum(clip / norm, 1.0)
            kept = 1.0 - rate * decay
            back = -pull * down
            if WHOLE:
                back = back / span
                rough_back = _rough(back)
                back_rest = back - rough_back
                back = rough_back
            bias = kept * bias - pull * bias_change
            if HIDDEN > 0:
                above = kept * above - pull * change
                above_bias = kept * above_bias - pull * above_change
            old = new
    tl.store(first_bias + u, bias, mask=is_unit)
    if HIDDEN > 0:
        tl.store(places, above, mask=is_place)
        tl.store(head_bias + o, above_bias, mask=is_output)
    tl.store(loss + client, tl.load(loss + client) + losses)
    tl.store(used + client, tl.load(used + client) + seen)
