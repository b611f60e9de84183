"""Soft penalty for long responses (DAPO, arXiv 2503.14476, equation 13; paper: buffer of 1/8)."""

from afm.errors import UserError


def overlong_penalty(
    policy_tokens: int,
    *,
    max_response_tokens: int,
    overlong_share: float,
    penalty: float,
) -> float:
    """Return what is added to the reward: 0 for a short response, falling linearly to -penalty at the limit.

    Only policy tokens count: a long observation is not the policy's fault.

    Args:
        policy_tokens: tokens that the policy wrote [tokens].
        max_response_tokens: the limit L [tokens].
        overlong_share: last share of L in which the penalty grows; 0 makes it a step at L.
        penalty: size of the penalty at L and beyond, not negative.

    Raises:
        UserError: an argument is out of range.
    """
    if max_response_tokens <= 0 or not 0 <= overlong_share <= 1 or penalty < 0:
        raise UserError(
            f"overlong penalty needs max_response_tokens > 0, overlong_share in [0, 1] and penalty >= 0, got "
            f"{max_response_tokens}, {overlong_share} and {penalty}"
        )
    if policy_tokens >= max_response_tokens:
        return -penalty
    buffer = overlong_share * max_response_tokens
    excess = policy_tokens - (max_response_tokens - buffer)
    return -penalty * min(excess / buffer, 1.0) if excess > 0 else 0.0
