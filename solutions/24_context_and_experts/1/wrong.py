"""Wrong and right answers to question 24.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_mean", "takes the mean of the two outputs",
        check="the_output_is_that_of_both_blocks", says="(blocks of 5 and 5 keys): out is", look="a block's share", edit="""
        -    out = (a[..., None] * out_a + b[..., None] * out_b) / total[..., None]
        +    out = (out_a + out_b) / 2
    """),
    WrongAnswer(
        "one_dimension_more", "returns an lse that still has the dimension for the product",
        check="the_output_is_that_of_both_blocks", says="merge returned tensors of shapes [[2, 6, 4], [2, 6, 1]]",
        look="shaped as it came in", edit="""
        -    return out, (top + total.log()).masked_fill(nothing, -torch.inf)
        +    return out, (top + total.log()).masked_fill(nothing, -torch.inf)[..., None]
    """),
    WrongAnswer(
        "the_larger_lse", "returns the larger lse as that of both",
        check="the_lse_is_that_of_both_blocks", says="lse is", look="the sums of exp(score) add up", edit="""
        -    return out, (top + total.log()).masked_fill(nothing, -torch.inf)
        +    return out, torch.maximum(lse_a, lse_b)
    """),
    WrongAnswer(
        "adds_the_logs", "adds up the two lse, as if they were the sums",
        check="the_lse_is_that_of_both_blocks", says="lse is", look="lse is the log of a sum", edit="""
        -    return out, (top + total.log()).masked_fill(nothing, -torch.inf)
        +    return out, lse_a + lse_b
    """),
    WrongAnswer(
        "one_maximum", "subtracts the largest lse of all queries",
        check="large_scores_do_no_harm", says="(queries 3000 apart)", look="for each query", edit="""
        -    top = torch.maximum(lse_a, lse_b).detach()
        +    top = torch.maximum(lse_a, lse_b).detach().max()
    """),
    WrongAnswer(
        "subtracts_the_first", "subtracts the first lse, which may be the smaller one",
        check="large_scores_do_no_harm", says="(the second block 3000 above the first)", look="0 for one of the two blocks", edit="""
        -    top = torch.maximum(lse_a, lse_b).detach()
        +    top = lse_a.detach()
    """),
    WrongAnswer(
        "neither_forgotten", "is right where one block is masked, and NaN where both are",
        check="masked_blocks_count_nothing", says="8 numbers of out and lse are NaN", look="-inf minus -inf",
        text='''
        import torch


        def merge(out_a, lse_a, out_b, lse_b):
            lse = torch.logaddexp(lse_a, lse_b)
            a, b = torch.exp(lse_a - lse), torch.exp(lse_b - lse)
            return a[..., None] * out_a + b[..., None] * out_b, lse
    '''),
    WrongAnswer(
        "a_very_small_number", "puts -1e5 in the place of -inf, and leaves it there",
        check="masked_blocks_count_nothing", says="lse is inf away", look="lse is -inf again", edit="""
        -    top = torch.maximum(lse_a, lse_b).detach()
        +    lse_a, lse_b = lse_a.clamp(min=-1e5), lse_b.clamp(min=-1e5)
        +    top = torch.maximum(lse_a, lse_b).detach()
    """),
    WrongAnswer(
        "log_of_zero", "masks the result of log(0), not its argument",
        check="the_gradients_are_right", says="is missing or not finite", look="the gradient of log(0)", edit="""
        -    total = total.masked_fill(nothing, 1)
        -    out = (a[..., None] * out_a + b[..., None] * out_b) / total[..., None]
        +    out = (a[..., None] * out_a + b[..., None] * out_b) / total.masked_fill(nothing, 1)[..., None]
    """),
    WrongAnswer(
        "shares_without_a_gradient", "takes the shares as constants",
        check="the_gradients_are_right", says="(blocks of 5 and 5 keys): the gradient of lse_", look="every path", edit="""
        -    a, b = torch.exp(lse_a - top), torch.exp(lse_b - top)
        +    a, b = torch.exp(lse_a - top).detach(), torch.exp(lse_b - top).detach()
    """),
    WrongAnswer(
        "added_over_the_ranks", "averages the output over the ranks as well, which have different queries",
        check="a_ring_equals_one_process", says="(a ring, in blocks): out on rank 0 is", look="this rank's queries", edit="""
        +import torch.distributed as dist
         import torch
        @@
        -    return out, (top + total.log()).masked_fill(nothing, -torch.inf)
        +    total = out.detach().clone()
        +    dist.all_reduce(total, op=dist.ReduceOp.AVG)
        +    return out + (total - out.detach()), (top + log_of_both).masked_fill(nothing, -torch.inf)
        @@
             total = total.masked_fill(nothing, 1)
        +    log_of_both = total.log()
    """),
    WrongAnswer(
        "largest_of_all_ranks", "subtracts the largest lse that any rank has",
        check="a_ring_equals_one_process", says="(a ring, in blocks): rank 0 started 2 operations, all_reduce first",
        look="nothing is to be sent", edit="""
        +import torch.distributed as dist
         import torch
        @@
             top = torch.maximum(lse_a, lse_b).detach()
        +    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    """),
    RightAnswer(
        "by_sigmoid", "a sigmoid of the difference, 0 in the place of -inf where both blocks are masked", text='''
        import torch


        def merge(out_a, lse_a, out_b, lse_b):
            neither = torch.isneginf(lse_a) & torch.isneginf(lse_b)
            a, b = lse_a.masked_fill(neither, 0), lse_b.masked_fill(neither, 0)
            out = out_a + torch.sigmoid(b - a).unsqueeze(-1) * (out_b - out_a)
            return out, torch.logaddexp(a, b).masked_fill(neither, -torch.inf)
    '''),
    RightAnswer(
        "both_in_one_tensor", "stacks the blocks: any number of them by softmax and logsumexp", text='''
        import torch


        def merge(*blocks):
            outs, lses = torch.stack(blocks[::2]), torch.stack(blocks[1::2])
            nothing = (lses == -torch.inf).all(0)
            lses = torch.where(nothing, 0.0, lses)
            out = (lses.softmax(0).unsqueeze(-1) * outs).sum(0)
            return [out, torch.where(nothing, -torch.inf, lses.logsumexp(0))]
    '''),
)
