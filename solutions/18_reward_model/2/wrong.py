"""Wrong and right answers to question 18.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "cap_against_the_exact_factors",
        "the detector compares capped factors with those of a right function: a wrong mode breaks the cap too",
        check="kept_promises_are_believed", says="it keeps 'cap'", edit="""
        -    if not all(kept(factors(mode, cap), factors(mode).clamp(max=cap)) for mode, cap in trials):
        +    if not all(kept(factors(mode, cap), modes[mode].clamp(max=cap)) for mode, cap in trials):
    """),
    WrongAnswer(
        "cap_not_in_none", "does not cap in mode none",
        check="the_cap_bounds", says="mode none, cap 0.5", edit="""
        -    if cap is not None:
        +    if cap is not None and mode != "none":
    """),
    WrongAnswer(
        "epsilon", "adds a small number to the mean weight, which is not small beside small weights",
        check="the_modes_differ_as_promised", says="one pair, mode mean", edit="""
        -    factors = {"none": torch.ones_like(weights), "mean": weights / weights.mean(), "sum": weights}[mode]
        +    factors = {"none": torch.ones_like(weights), "mean": weights / (weights.mean() + 1e-4), "sum": weights}[mode]
    """),
    WrongAnswer(
        "equal_weights_tested", "the weights of the detector's test are all 1",
        check="broken_promises_are_named", says="it breaks 'none'", edit="""
        -    weights = torch.tensor([0.5, 4.0, 1.0, 0.1, 2.0], dtype=torch.float64)
        +    weights = torch.ones(5, dtype=torch.float64)
    """),
    WrongAnswer(
        "scaled_down", "divides all factors so that the largest is the cap",
        check="the_cap_bounds", says="the factors are", edit="""
        -        factors = factors.clamp(max=cap)
        +        factors = factors * min(1.0, cap / factors.max().item())
    """),
    WrongAnswer(
        "sum_is_a_sum", "mode sum adds up and forgets the mean over the pairs",
        check="the_modes_differ_as_promised", says="mode sum", edit="""
        -    factors = {"none": torch.ones_like(weights), "mean": weights / weights.mean(), "sum": weights}[mode]
        +    factors = {"none": torch.ones_like(weights), "mean": weights / weights.mean(), "sum": weights * len(weights)}[mode]
    """),
    WrongAnswer(
        "truth_value", "the detector returns whether there is a broken promise",
        check="kept_promises_are_believed", says="returned", edit="""
        -    return broken
        +    return bool(broken)
    """),
    WrongAnswer(
        "cuts_in_place", "cuts the factors off in place: in mode sum they are the weights of the caller",
        check="the_weights_stay", says="when weighted_loss has returned", look="ends in _", edit="""
        -        factors = factors.clamp(max=cap)
        +        factors.clamp_(max=cap)
    """),
    WrongAnswer(
        "cap_tested_in_good_modes", "the detector tests the cap in the modes that are right, and in no other",
        check="broken_promises_are_named", says="it breaks 'cap' as well", look="in all modes", edit="""
        -    trials = [(mode, cap) for mode in modes for cap in (0.5, 1.5)]
        +    trials = [(mode, cap) for mode in modes if mode not in broken for cap in (0.5, 1.5)]
    """),
    RightAnswer(
        "one_hot_losses",
        "factors by losses of 0 and 1, random weights, a set of names; the loss is a dot product and cut in a loop",
        text="""
        import torch


        def factors_of(weighted_loss, weights, mode, cap):
            return [float(weighted_loss(row, weights, mode, cap)) * len(weights) for row in torch.eye(len(weights)).double()]


        def near(result, wanted):
            return all(abs(a - b) <= 1e-6 * max(1, abs(b)) for a, b in zip(result, wanted, strict=True))


        def broken_promises(weighted_loss):
            numbers, broken = torch.Generator().manual_seed(3), set()
            for pairs in (3, 6):
                weights = 5 * torch.rand(pairs, generator=numbers).double() + 0.2
                wanted = {
                    "none": [1.0] * pairs,
                    "mean": (weights * pairs / weights.sum()).tolist(),
                    "sum": weights.tolist(),
                }
                for mode, right in wanted.items():
                    free = factors_of(weighted_loss, weights, mode, None)
                    if not near(free, right):
                        broken.add(mode)
                    for cap in (0.3, 0.9, 1.1, 2.0):
                        if not near(factors_of(weighted_loss, weights, mode, cap), [min(factor, cap) for factor in free]):
                            broken.add("cap")
            return broken


        def weighted_loss(losses, weights, mode, cap):
            total = 0.0
            for loss, weight in zip(losses, weights.tolist(), strict=True):
                factor = 1.0 if mode == "none" else weight
                if mode == "mean":
                    factor = weight * len(weights) / float(weights.sum())
                total = total + loss * (factor if cap is None or factor < cap else cap)
            return total / len(losses)
    """),
    RightAnswer(
        "a_tiny_number_beside_the_mean", "keeps the mean weight from 0, by less than the tenth digit of any factor",
        edit="""
        -    factors = {"none": torch.ones_like(weights), "mean": weights / weights.mean(), "sum": weights}[mode]
        +    factors = {"none": torch.ones_like(weights), "mean": weights / (weights.mean() + 1e-12), "sum": weights}[mode]
    """),
    RightAnswer(
        "a_set_of_promises", "returns a set; the loss is a dot product, its factors capped by torch.minimum",
        edit="""
        -    return broken
        +    return set(broken)
        @@
        -    factors = {"none": torch.ones_like(weights), "mean": weights / weights.mean(), "sum": weights}[mode]
        -    if cap is not None:
        -        factors = factors.clamp(max=cap)
        -    return (factors * losses).mean()
        +    factors = weights ** 0 if mode == "none" else weights * 1.0
        +    if mode == "mean":
        +        factors /= weights.sum() / len(weights)
        +    if cap is not None:
        +        factors = torch.minimum(factors, factors.new_tensor(cap))
        +    return factors @ losses / len(losses)
    """),
)
