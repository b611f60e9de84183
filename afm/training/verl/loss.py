"""verl's PPO loss, and beside it how far the trainer's probabilities are from the rollout's.

Where the rollout's log-probabilities serve as the old ones (`settings.one_forward_pass`), verl compares them with
nothing; the loss has both at hand.
"""

from typing import Any

import torch
import verl.workers.engine_workers as workers
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

PROBS_DIFF = "rollout_probs_diff_max"
PROBS_DIFF_MEAN = "rollout_probs_diff_mean"
"""Names of the metrics; verl puts `actor/` before them."""


def compared_ppo_loss(
    config: Any, model_output: Any, data: Any, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return `ppo_loss` with the largest difference between old and new probability of a policy token."""
    log_prob = no_padding_2_padding(model_output["log_probs"], data).detach()
    fields = data.select("response_mask", "old_log_probs").to_padded_tensor()
    loss, metrics = ppo_loss(config, model_output, data, dp_group)
    mask = fields["response_mask"].bool()
    difference = (log_prob.exp() - fields["old_log_probs"].exp()).abs()[mask]
    largest = difference.max().item() if mask.any() else 0.0
    metrics[PROBS_DIFF] = Metric(aggregation=AggregationType.MAX, value=largest)
    mean = difference.mean().item() if mask.any() else 0.0
    metrics[PROBS_DIFF_MEAN] = Metric(aggregation=AggregationType.MEAN, value=mean)
    return loss, metrics


def install() -> None:
    """Make verl's workers use `compared_ppo_loss`."""
    workers.ppo_loss = compared_ppo_loss
