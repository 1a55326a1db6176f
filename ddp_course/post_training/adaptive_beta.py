"""How strongly the policy is held to the reference: a weight that follows the distance, the same on all ranks."""


class AdaptiveBeta:
    """The KL penalty's weight. It grows while the policy is farther from the reference than `target`, else it shrinks.

    A proportional controller, as in Ziegler et al., "Fine-tuning language models from human preferences" (2019),
    section 2.2, whose gain is 0.1. `target` is in nats a token; 0 keeps the weight as it is.

    It is state: `value` depends on every KL it was ever told. So all ranks must tell it the same number, the mean over
    the joint batch, or they train on different losses; and a checkpoint has to hold it.
    """

    def __init__(self, value: float, target: float, gain: float) -> None:
        self.value = value
        self._target, self._gain = target, gain

    def update(self, kl: float) -> None:
        """`kl`: mean over the tokens of *all* ranks, in nats."""
        if self._target:
            error = min(max(kl / self._target - 1, -0.2), 0.2)
            self.value *= 1 + self._gain * error

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]
