"""The GPU kernels behind `fedloom.engine.convolutions`; importing it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def correlate(  # type: ignore[no-untyped-def]
    x,
    w,
    out,
    x_client,
    x_sample,
    x_channel,
    x_row,
    x_column,
    w_client,
    w_to,
    w_from,
    w_row,
    w_column,
    BATCH: tl.constexpr,
    FROM: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TO: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAD_ROWS: tl.constexpr,
    PAD_COLUMNS: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TERMS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Some pixels of one client's result: a product with the patches around them.

    A program is a client, PIXELS of the BATCH * OUT_HEIGHT * OUT_WIDTH pixels, and
    CHANNELS of the result; patches are gathered as they are needed, TERMS numbers of
    each at a time. `out` is (C, BATCH, TO, OUT_HEIGHT, OUT_WIDTH), contiguous.
    """
    client = tl.program_id(1).to(tl.int64)
    area: tl.constexpr = OUT_HEIGHT * OUT_WIDTH
    total: tl.constexpr = FROM * ROWS * COLUMNS
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    is_pixel = pixel < BATCH * area
    sample, place = pixel // area, pixel % area
    top = place // OUT_WIDTH - PAD_ROWS
    left = place % OUT_WIDTH - PAD_COLUMNS
    to = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    x += client * x_client
    w += client * w_client
    sums = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for start in range(0, total, TERMS):
        term = start + tl.arange(0, TERMS)
        is_term = term < total
        channel = term // (ROWS * COLUMNS)
        row = term // COLUMNS % ROWS
        column = term % COLUMNS
        y, z = top[:, None] + row[None, :], left[:, None] + column[None, :]
        is_inside = (y >= 0) & (y < HEIGHT) & (z >= 0) & (z < WIDTH)
        patch = tl.load(
            x
            + sample[:, None] * x_sample
            + channel[None, :] * x_channel
            + y * x_row
            + z * x_column,
            mask=is_inside & is_pixel[:, None] & is_term[None, :],
            other=0.0,
        )
        weight = tl.load(
            w
            + (channel * w_from + row * w_row + column * w_column)[:, None]
            + to[None, :] * w_to,
            mask=is_term[:, None] & (to[None, :] < TO),
            other=0.0,
        )
        sums = tl.dot(patch, weight, sums, input_precision=PRECISION)
    where = (client * BATCH + sample) * (TO * area) + place
    tl.store(
        out + where[:, None] + to[None, :] * area,
        sums,
        mask=is_pixel[:, None] & (to[None, :] < TO),
    )


@triton.jit  # type: ignore[untyped-decorator]
def weight_gradient(  # type: ignore[no-untyped-def]
    x,
    error,
    out,
    x_client,
    x_sample,
    x_channel,
    x_row,
    x_column,
    e_client,
    e_sample,
    e_channel,
    e_row,
    e_column,
    BATCH: tl.constexpr,
    FROM: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    TO: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAD_ROWS: tl.constexpr,
    PAD_COLUMNS: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TERMS: tl.constexpr,
    SLICE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """What a slice of the pixels adds to the gradient of one client's weights.

    A program is a client, SLICE of the pixels (a multiple of PIXELS), and some
    CHANNELS by TERMS weights. `out` is (C, slices, TO, FROM * ROWS * COLUMNS).
    """
    client = tl.program_id(1).to(tl.int64)
    area: tl.constexpr = OUT_HEIGHT * OUT_WIDTH
    total: tl.constexpr = FROM * ROWS * COLUMNS
    blocks: tl.constexpr = (total + TERMS - 1) // TERMS
    term = tl.program_id(2) % blocks * TERMS + tl.arange(0, TERMS)
    to = tl.program_id(2) // blocks * CHANNELS + tl.arange(0, CHANNELS)
    is_term = term < total
    channel = term // (ROWS * COLUMNS)
    row = term // COLUMNS % ROWS - PAD_ROWS
    column = term % COLUMNS - PAD_COLUMNS
    x += client * x_client
    error += client * e_client
    sums = tl.zeros([CHANNELS, TERMS], tl.float32)
    for start in range(0, SLICE, PIXELS):
        pixel = tl.program_id(0) * SLICE + start + tl.arange(0, PIXELS)
        is_pixel = pixel < BATCH * area
        sample, place = pixel // area, pixel % area
        top, left = place // OUT_WIDTH, place % OUT_WIDTH
        wrong = tl.load(
            error
            + (sample * e_sample + top * e_row + left * e_column)[None, :]
            + to[:, None] * e_channel,
            mask=is_pixel[None, :] & (to[:, None] < TO),
            other=0.0,
        )
        y, z = top[:, None] + row[None, :], left[:, None] + column[None, :]
        is_inside = (y >= 0) & (y < HEIGHT) & (z >= 0) & (z < WIDTH)
        patch = tl.load(
            x
            + sample[:, None] * x_sample
            + channel[None, :] * x_channel
            + y * x_row
            + z * x_column,
            mask=is_inside & is_pixel[:, None] & is_term[None, :],
            other=0.0,
        )
        sums = tl.dot(wrong, patch, sums, input_precision=PRECISION)
    where = (client * tl.num_programs(0) + tl.program_id(0)) * (TO * total)
    tl.store(
        out + where + to[:, None] * total + term[None, :],
        sums,
        mask=(to[:, None] < TO) & is_term[None, :],
    )
