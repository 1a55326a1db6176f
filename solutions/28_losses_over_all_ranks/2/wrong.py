"""Wrong and right answers to question 28.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import GIVEN, RightAnswer, WrongAnswer

FINITE, LOSS = "the_loss_is_finite", "the_loss_is_right"
GRADIENTS, LABELS = "the_gradients_are_right", "labels_are_exact"

ANSWERS = (
    WrongAnswer(
        "given", "leaves everything as it is",
        check=FINITE, says="has the loss nan", look="may have no positive", on=GIVEN, edit="""
         ROWS, TEMPERATURE = 6, 0.1
        +UNCHANGED = True
    """),
    WrongAnswer(
        "a_new_zero", "returns a 0 that is computed from nothing where no row has a positive",
        check=FINITE, says="(no row has a positive): backward of the loss on rank 0 gives features no gradient",
        look="computed from features", edit="""
        -    return per_row.sum() / count.clamp(min=1) * dist.get_world_size()
        +    if count == 0:
        +        return torch.zeros((), dtype=features.dtype, requires_grad=True)
        +    return per_row.sum() / count * dist.get_world_size()
    """),
    WrongAnswer(
        "own_divisor", "takes the mean over its own rows with a positive",
        check=LOSS, says="the mean of the ranks' means", look="divided by", edit="""
        -    dist.all_reduce(count)
        -    return per_row.sum() / count.clamp(min=1) * dist.get_world_size()
        +    return per_row.sum() / count.clamp(min=1)
    """),
    WrongAnswer(
        "own_labels", "takes the rows of other ranks for negatives",
        check=LOSS, says="the mean of the ranks' losses is", edit="""
        -    all_labels = torch.cat(gather(labels))
        +    all_labels = torch.full((len(all_features),), -1)
        +    all_labels[first : first + len(labels)] = labels
    """),
    WrongAnswer(
        "features_without_gradient", "gathers the features by dist.all_gather",
        check=GRADIENTS, says="the gradient for the features of rank 0", look="another rank's rows", edit="""
        -    all_features, first = Gather.apply(features), dist.get_rank() * len(features)
        +    all_features, first = torch.cat(gather(features)), dist.get_rank() * len(features)
    """),
    WrongAnswer(
        "own_slice", "puts its own features into those of all ranks",
        check=GRADIENTS, says="the gradient for the features of rank 0", look="another rank's rows", edit="""
        -    all_features, first = Gather.apply(features), dist.get_rank() * len(features)
        +    parts = gather(features)
        +    parts[dist.get_rank()] = features
        +    all_features, first = torch.cat(parts), dist.get_rank() * len(features)
    """),
    WrongAnswer(
        "labels_beside_features", "sends the labels as one more feature",
        check=LABELS, says="the mean of the ranks' losses is", look="2**60", edit="""
        -    all_labels = torch.cat(gather(labels))
        +    labels = labels.to(features.dtype)
        +    all_labels = torch.cat(gather(torch.cat([features.detach(), labels[:, None]], dim=1)))[:, -1]
    """),
    WrongAnswer(
        "labels_in_int32", "gathers the labels in int32, which keeps their last 32 bits",
        check=LABELS, says="the mean of the ranks' losses is", look="int32", edit="""
        +    labels = labels.int()
             all_labels = torch.cat(gather(labels))
    """),
    RightAnswer(
        "whole_on_every_rank", "every rank computes the whole loss of gathered rows: no factor is left", edit="""
        -    itself = torch.arange(first, first + len(features))[:, None] == torch.arange(len(all_features))
        -    positive = (labels[:, None] == all_labels) & ~itself
        -    log_p = (features @ all_features.T / TEMPERATURE).masked_fill(itself, -torch.inf).log_softmax(dim=1)
        +    itself = torch.eye(len(all_features), dtype=torch.bool)
        +    positive = (all_labels[:, None] == all_labels) & ~itself
        +    log_p = (all_features @ all_features.T / TEMPERATURE).masked_fill(itself, -torch.inf).log_softmax(dim=1)
        @@
        -    dist.all_reduce(count)
        -    return per_row.sum() / count.clamp(min=1) * dist.get_world_size()
        +    return per_row.sum() / count.clamp(min=1)
    """),
    RightAnswer(
        "own_slice_of_the_whole_loss", "dist.all_gather with the own slice, and N for the gradient DDP divides",
        text='''
        import torch
        import torch.distributed as dist


        def supervised_contrastive_loss(features, labels):
            size, rank = dist.get_world_size(), dist.get_rank()
            rows, kinds = torch.empty(size, *features.shape, dtype=features.dtype), torch.empty(size, len(labels)).long()
            dist.all_gather(list(rows), features.detach())
            dist.all_gather(list(kinds), labels)
            rows = torch.cat([*rows[:rank], features, *rows[rank + 1 :]])
            kinds = kinds.flatten()
            total, counted = features.sum() * 0, 0
            for row in range(len(rows)):
                others = [other for other in range(len(rows)) if other != row]
                log_p = (rows[others] @ rows[row] / 0.1).log_softmax(dim=0)
                positive = kinds[others] == kinds[row]
                if positive.any():
                    total, counted = total - log_p[positive].mean(), counted + 1
            loss = total / max(counted, 1)
            return loss.detach() + size * (loss - loss.detach())
    '''),
)
