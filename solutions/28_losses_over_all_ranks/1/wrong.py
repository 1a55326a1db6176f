"""Wrong and right answers to question 28.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import GIVEN, RightAnswer, WrongAnswer

LOSS, GRADIENTS = "the_loss_is_right", "the_gradients_are_right"
SCALE, MATRIX = "the_temperature_is_right", "the_matrix_stays_small"

ANSWERS = (
    WrongAnswer(
        "labels_from_0", "gives the gather a gradient and leaves the labels",
        check=LOSS, says="with the same right columns on every rank", look="in which column a row of rank 1", edit="""
        -    labels = dist.get_rank() * len(images) + torch.arange(len(images))
        +    labels = torch.arange(len(images))
    """),
    WrongAnswer(
        "own_rows_only", "compares each rank's rows among themselves",
        check=LOSS, says="compared with their own rank's only", look="the columns", edit="""
        -    all_images, all_texts = Gather.apply(images), Gather.apply(texts)
        -    labels = dist.get_rank() * len(images) + torch.arange(len(images))
        +    all_images, all_texts = images, texts
        +    labels = torch.arange(len(images))
    """),
    WrongAnswer(
        "columns_without_gradient", "repairs the labels and leaves dist.all_gather",
        check=GRADIENTS, says="the gradient for the images of rank 0", look="another rank's rows", on=GIVEN, edit="""
        -    labels = torch.arange(len(images))
        +    labels = dist.get_rank() * len(images) + torch.arange(len(images))
    """),
    WrongAnswer(
        "own_slice", "puts the own slice into all rows, and leaves DDP's division as it is",
        check=GRADIENTS, says="0.500 times one process's, 1/N of it", look="how often", on=GIVEN, edit="""
        -    return torch.cat(parts)
        +    parts[dist.get_rank()] = rows
        +    return torch.cat(parts)
        @@
        -    labels = torch.arange(len(images))
        -    of_images = cross_entropy(scale * images @ gather(texts).T, labels)
        -    of_texts = cross_entropy(scale * texts @ gather(images).T, labels)
        +    images, texts = gather(images), gather(texts)
        +    labels = torch.arange(len(images))
        +    of_images = cross_entropy(scale * images @ texts.T, labels)
        +    of_texts = cross_entropy(scale * texts @ images.T, labels)
    """),
    WrongAnswer(
        "own_slice_times_n", "multiplies the loss by N for the gradient, and shows the mean",
        check=SCALE, says="2.000 times that of one process", look="needs no factor", on="own_slice", edit="""
        -    return (of_images + of_texts) / 2
        +    loss = (of_images + of_texts) / 2
        +    return loss.detach() + dist.get_world_size() * (loss - loss.detach())
    """),
    WrongAnswer(
        "fixed_temperature", "takes the temperature for a constant",
        check=SCALE, says="is 0.000 times that of one process", look="every rank", edit="""
             labels = dist.get_rank() * len(images) + torch.arange(len(images))
        +    scale = scale.detach() + 0 * scale
    """),
    WrongAnswer(
        "whole_matrix", "computes all rows on every rank",
        check=MATRIX, says="built a tensor of 324 numbers", look="whose loss it returns", edit="""
        -    labels = dist.get_rank() * len(images) + torch.arange(len(images))
        -    of_images = cross_entropy(scale * images @ all_texts.T, labels)
        -    of_texts = cross_entropy(scale * texts @ all_images.T, labels)
        +    labels = torch.arange(len(all_images))
        +    of_images = cross_entropy(scale * all_images @ all_texts.T, labels)
        +    of_texts = cross_entropy(scale * all_texts @ all_images.T, labels)
    """),
    WrongAnswer(
        "own_slice_scaled", "the own slice in all rows, its gradient times N",
        check=MATRIX, says="built a tensor of 324 numbers", on="own_slice", edit="""
             images, texts = gather(images), gather(texts)
        +    for rows in (images, texts):
        +        rows.register_hook(lambda gradient: gradient * dist.get_world_size())
    """),
    RightAnswer(
        "torchs_function", "torch's own all_gather with a gradient",
        edit="""
        -    all_images, all_texts = Gather.apply(images), Gather.apply(texts)
        +    all_gather = torch.distributed.nn.functional.all_gather
        +    all_images, all_texts = torch.cat(all_gather(images)), torch.cat(all_gather(texts))
    """),
    RightAnswer(
        "one_message", "gathers images and texts at once, and sends gradients by a reduce-scatter", text='''
        import torch
        import torch.distributed as dist


        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, rows):
                parts = list(rows.new_empty(dist.get_world_size(), *rows.shape))
                dist.all_gather(parts, rows.contiguous())
                return torch.stack(parts)

            @staticmethod
            def backward(ctx, gradient):
                own = torch.empty_like(gradient[0])
                dist.reduce_scatter(own, list(gradient.contiguous()))
                return own


        def contrastive_loss(images, texts, scale):
            rank, rows = dist.get_rank(), len(images)
            columns = Gather.apply(torch.cat([images, texts], dim=1)).flatten(0, 1)
            all_images, all_texts = columns.split(images.shape[1], dim=1)
            right = range(rank * rows, (rank + 1) * rows)
            total = 0.0
            for own, others in ((images, all_texts), (texts, all_images)):
                log_p = (scale * own @ others.T).log_softmax(dim=1)
                total = total - log_p[range(rows), right].mean() / 2
            return total
    '''),
)
