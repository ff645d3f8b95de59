"""The recurrence of an LSTM as one operation, with a gradient written by hand.

Traced step by step it is hundreds of operations, which take minutes to compile. Here
`vmap` and the compiler see one. The gradient of the weights is one product over all
steps instead of a sum of one product for each.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def recur(inputs: Tensor, weight: Tensor, bias: Tensor, is_real: Tensor) -> Tensor:
    """(B, T, h) the state after every step, from a state of 0.

    Args:
        inputs: (B, T, 4 h) what the inputs contribute to the gates: input, forget,
            cell, output.
        weight: (4 h, h) what the state contributes to them.
        bias: (4 h,).
        is_real: (B, T) False where a step is padding, which leaves the state as it is.
    """
    states: Tensor = _Recur.apply(inputs, weight, bias, is_real)[0]  # type: ignore[no-untyped-call]
    return states


@torch.library.custom_op("fedloom::recur", mutates_args=())
def _forward(
    inputs: Tensor, weight: Tensor, bias: Tensor, is_real: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """States, cells and gates after every step; dimensions may come before all."""
    steps = inputs.shape[-2]
    state = cell = inputs.new_zeros(*inputs.shape[:-2], weight.shape[-1])
    states = [state] * steps
    cells = [state] * steps
    gates = [state] * steps
    flipped, bias = weight.mT, bias.unsqueeze(-2)
    for t in range(steps):
        total = inputs[..., t, :] + bias
        total += state @ flipped
        enter, keep, fresh, show = total.chunk(4, -1)
        for gate in (enter, keep, show):
            gate.sigmoid_()
        fresh.tanh_()
        new_cell = torch.addcmul(keep * cell, enter, fresh)
        moves = is_real[..., t, None]
        state = torch.where(moves, show * new_cell.tanh(), state)
        cell = torch.where(moves, new_cell, cell)
        states[t], cells[t], gates[t] = state, cell, total
    return torch.stack(states, -2), torch.stack(cells, -2), torch.stack(gates, -2)


@torch.library.custom_op("fedloom::recur_backward", mutates_args=())
def _backward(
    error: Tensor,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    is_real: Tensor,
    states: Tensor,
    cells: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Errors of inputs, weight and bias, from those of the states."""
    of_inputs = torch.empty_like(inputs)
    of_state = torch.zeros_like(states[..., 0, :])
    of_cell = torch.zeros_like(of_state)
    nothing = of_state
    for t in reversed(range(inputs.shape[-2])):
        moves = is_real[..., t, None]
        enter, keep, fresh, show = gates[..., t, :].chunk(4, -1)
        before = cells[..., t - 1, :] if t else nothing
        seen = cells[..., t, :].tanh()
        of_state = of_state + error[..., t, :]
        new_state = torch.where(moves, of_state, 0.0)
        new_cell = torch.where(moves, of_cell, 0.0)
        new_cell = new_cell + new_state * show * (1 - seen * seen)
        parts = (
            new_cell * fresh * enter * (1 - enter),
            new_cell * before * keep * (1 - keep),
            new_cell * enter * (1 - fresh * fresh),
            new_state * seen * show * (1 - show),
        )
        of_gates = torch.cat(parts, -1)
        of_inputs[..., t, :] = of_gates
        of_state = torch.where(moves, of_gates @ weight, of_state)
        of_cell = torch.where(moves, new_cell * keep, of_cell)
    earlier = F.pad(states[..., :-1, :], (0, 0, 1, 0))
    of_weight = of_inputs.flatten(-3, -2).mT @ earlier.flatten(-3, -2)
    return of_inputs, of_weight, of_inputs.sum((-3, -2))


def _written_out(
    inputs: Tensor, weight: Tensor, bias: Tensor, is_real: Tensor
) -> Tensor:
    """The same states by operations that PyTorch can differentiate, twice too."""
    state = cell = inputs.new_zeros(*inputs.shape[:-2], weight.shape[-1])
    states = []
    for t in range(inputs.shape[-2]):
        total = inputs[..., t, :] + state @ weight.mT + bias.unsqueeze(-2)
        enter, keep, fresh, show = total.chunk(4, -1)
        new_cell = keep.sigmoid() * cell + enter.sigmoid() * fresh.tanh()
        moves = is_real[..., t, None]
        state = torch.where(moves, show.sigmoid() * new_cell.tanh(), state)
        cell = torch.where(moves, new_cell, cell)
        states.append(state)
    return torch.stack(states, -2)


@_forward.register_fake
def _(
    inputs: Tensor, weight: Tensor, bias: Tensor, is_real: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    shape = *inputs.shape[:-1], weight.shape[-1]
    return inputs.new_empty(shape), inputs.new_empty(shape), torch.empty_like(inputs)


@_backward.register_fake
def _(
    error: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor, *saved: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(inputs), torch.empty_like(weight), torch.empty_like(bias)


class _Recur(torch.autograd.Function):
    """States, cells and gates, and how errors go back through them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        inputs: Tensor, weight: Tensor, bias: Tensor, is_real: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As one operation."""
        made: tuple[Tensor, Tensor, Tensor] = _forward(inputs, weight, bias, is_real)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        """All is needed again."""
        ctx.save_for_backward(*inputs, *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        """By hand; can be differentiated itself."""
        saved = errors[0], *ctx.saved_tensors
        return *_RecurBackward.apply(*saved), None  # type: ignore[no-untyped-call]


class _RecurBackward(torch.autograd.Function):
    """The gradient, and its gradient."""

    generate_vmap_rule = True

    @staticmethod
    # The compiler counts parameters, so all are named.
    def forward(
        error: Tensor,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        is_real: Tensor,
        states: Tensor,
        cells: Tensor,
        gates: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The error of the states, what `_Recur` was given, and what it gave."""
        made: tuple[Tensor, Tensor, Tensor] = _backward(
            error, inputs, weight, bias, is_real, states, cells, gates
        )
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        """What `_Recur` gave is a function of what it was given."""
        ctx.save_for_backward(*inputs[:5])

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        """PyTorch's, of the recurrence written out."""
        *own, is_real = ctx.saved_tensors

        def first(error: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
            pull = vjp(lambda x, w, b: _written_out(x, w, b, is_real), *given)[1]
            gradients: tuple[Tensor, ...] = pull(error)
            return gradients

        return *vjp(first, *own)[1](errors), None, None, None, None


def _batched(op: Any) -> Any:
    """Clients are one more dimension before all others, of every argument."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> Any:
        ready = [
            argument.expand(info.batch_size, *argument.shape)
            if dim is None
            else argument.movedim(dim, 0)
            for argument, dim in zip(arguments, in_dims, strict=True)
        ]
        return op(*ready), (0, 0, 0)

    return rule


_forward.register_vmap(_batched(_forward))
_backward.register_vmap(_batched(_backward))
