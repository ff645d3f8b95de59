"""The two-level Gaussian of Self-FL, solved exactly.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Sections 2, 3.1, D.

    theta_m ~ N(theta_0, s0)        z_m | theta_m ~ N(theta_m, s_m)

    paper      here                        paper       here
    sigma_0^2  between                     theta^(G)   TwoLevel.shared_optimum
    sigma_m^2  within                      theta^(FL)  TwoLevel.personal_optimum
    z_m        optima, theta_m^(L)         INIT, ell   TwoLevel.start, real_steps

Clients are the last dimension; whatever comes before (repeats) is carried along.
`Parametric` is the same with a covariance matrix in the place of each variance.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def others(values: Tensor) -> Tensor:
    """(..., M) the sum over everybody else."""
    return values.sum(-1, keepdim=True) - values


def real_steps(within: Tensor, others: Tensor, pace: Tensor | float) -> Tensor:
    """The real number ell with (1 - pace / within)^ell = S / (1 / within + S), Eq. (8).

    Args:
        within: sigma_m^2.
        others: S, the summed precision of the other clients.
        pace: the learning rate eta; for a mean loss, eta times its scale.
    """
    return -torch.log1p(1.0 / (within * others)) / torch.log1p(-pace / within)


def descend(
    start: Tensor, optima: Tensor, within: Tensor, pace: float, steps: Tensor | float
) -> Tensor:
    """Where gradient descent on (theta - z)^2 / (2 s) is after `steps`, Eq. (6)."""
    kept = (1.0 - pace / within) ** steps
    return (1.0 - kept) * optima + kept * start


class TwoLevel(NamedTuple):
    """Variances of the model above, and the closed forms that follow from them."""

    between: Tensor
    """sigma_0^2, a scalar or (..., 1)."""
    within: Tensor
    """(..., M) sigma_m^2."""

    @classmethod
    def estimate(cls, optima: Tensor, variances: Tensor, sizes: Tensor) -> TwoLevel:
        """Variances from data, by moments, where nobody knows them.

        The variance of z_m over clients is sigma_0^2 plus the mean sigma_m^2 on
        average; what is left without the second is the first, and at least 0.

        Args:
            optima: (..., M) z_m, the mean of each client's samples.
            variances: (..., M) the sample variance of each client.
            sizes: (..., M) how many samples each has.
        """
        within = variances / sizes
        spread = optima.var(-1, keepdim=True) - within.mean(-1, keepdim=True)
        return cls(spread.clamp(min=0.0), within)

    @property
    def precision(self) -> Tensor:
        """(..., M) w_m = 1 / (sigma_0^2 + sigma_m^2)."""
        return 1.0 / (self.between + self.within)

    @property
    def others(self) -> Tensor:
        """(..., M) S_m, the precisions of all clients but m."""
        return others(self.precision)

    @property
    def kept(self) -> Tensor:
        """(..., M) q_m = S_m / (1 / s_m + S_m): the right side of Eq. (8)."""
        return self.others / (1.0 / self.within + self.others)

    @property
    def gain(self) -> Tensor:
        """(..., M) GAIN_m = v^(L) / v^(FL) = 1 + s_m S_m, section 2.1."""
        return 1.0 + self.within * self.others

    def shared_optimum(self, optima: Tensor) -> tuple[Tensor, Tensor]:
        """theta^(G) and its variance v^(G), Eq. (2); (...,) each."""
        total = self.precision.sum(-1)
        return (self.precision * optima).sum(-1) / total, 1.0 / total

    def personal_optimum(self, optima: Tensor) -> tuple[Tensor, Tensor]:
        """theta^(FL) and its variance v^(FL), Eq. (3); (..., M) each.

        The paper derives it for theta_1 = theta_0; see `posterior` for the model as
        stated in Eq. (1).
        """
        total = 1.0 / self.within + self.others
        mean = (optima / self.within + others(self.precision * optima)) / total
        return mean, 1.0 / total

    def posterior(self, optima: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of theta_m given all data under Eq. (1); (..., M) each.

        The others know theta_0 with precision S_m, hence theta_m with 1/(s0 + 1/S_m).
        """
        prior = 1.0 / (self.between + 1.0 / self.others)
        total = 1.0 / self.within + prior
        mean = (optima / self.within + prior * self.start(optima)) / total
        return mean, 1.0 / total

    def start(self, optima: Tensor) -> Tensor:
        """INIT as the mean of the others' optima, Eq. (7)."""
        return others(self.precision * optima) / self.others

    def start_from(self, shared: Tensor, own: Tensor) -> Tensor:
        """INIT from the shared model and the client's own, Eqs. (9), (10) and (21).

        Args:
            shared: (..., 1) theta^(G), or the shared model of the last round.
            own: (..., M) theta_m^(L), or the clients' models of the last round.
        """
        return shared - self.precision / self.others * (own - shared)

    def steps(self, lr: float) -> Tensor:
        """(..., M) the real-valued ell_m of Eq. (8)."""
        return real_steps(self.within, self.others, lr)

    def fixed_point(self, optima: Tensor) -> Tensor:
        """(..., M) where generic Self-FL, Eqs. (10), (8), (11), comes to rest.

        Everybody takes part and steps are real. INIT is then the leave-one-out mean of
        the last personal models, theta = (1 - q) z + q P theta with P_mk = w_k / S_m.
        """
        eye = torch.eye(optima.shape[-1], dtype=optima.dtype)
        share = self.precision[..., None, :] * (1.0 - eye) / self.others[..., None]
        system = eye - self.kept[..., None] * share
        return _solve(system, ((1.0 - self.kept) * optima)[..., None])[..., 0]


class Parametric(NamedTuple):
    """Section D for p parameters: z_m | theta_m ~ N(theta_m, V_m / N_m).

    The scalar formulas hold with matrices in their order. A single number of steps
    exists only where the matrices share their eigenvectors: then Eq. (16) holds
    eigenvalue by eigenvalue, which is why Algorithm 1 uses traces.
    """

    between: Tensor
    """(p, p) Sigma_0."""
    within: Tensor
    """(..., M, p, p) Sigma_m = V_m / N_m, the inverse Fisher information over N_m."""

    @classmethod
    def of_samples(
        cls, between: Tensor, inverse_fisher: Tensor, sizes: Tensor
    ) -> Parametric:
        """From V_m (..., M, p, p) of one sample and N_m (..., M)."""
        return cls(between, inverse_fisher / sizes[..., None, None])

    @property
    def precision(self) -> Tensor:
        """(..., M, p, p) W_m = (Sigma_0 + Sigma_m)^-1."""
        inverse: Tensor = torch.linalg.inv(self.between + self.within)
        return inverse

    @property
    def others(self) -> Tensor:
        """(..., M, p, p) S_m, the precision matrices of all clients but m."""
        return self.precision.sum(-3, keepdim=True) - self.precision

    @property
    def kept(self) -> Tensor:
        """(..., M, p, p) Q_m = (Sigma_m^-1 + S_m)^-1 S_m, right side of Eq. (16)."""
        return _solve(torch.linalg.inv(self.within) + self.others, self.others)

    def shared_optimum(self, optima: Tensor) -> Tensor:
        """(..., p) theta^(G) of section D, from optima (..., M, p)."""
        pulled = _apply(self.precision, optima).sum(-2)
        return _solve(self.precision.sum(-3), pulled[..., None])[..., 0]

    def start(self, optima: Tensor) -> Tensor:
        """(..., M, p) INIT, Eq. (15)."""
        pulled = _apply(self.precision, optima)
        rest = pulled.sum(-2, keepdim=True) - pulled
        return _solve(self.others, rest[..., None])[..., 0]

    def personal_optimum(self, optima: Tensor) -> Tensor:
        """(..., M, p) theta^(FL) of section D: (I - Q_m) z_m + Q_m INIT_m."""
        return optima + _apply(self.kept, self.start(optima) - optima)


def _apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    return (matrices @ vectors[..., None])[..., 0]


def _solve(matrices: Tensor, right: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve(matrices, right)
    return solution
