"""Wrong and right answers to question 08.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "appends_on_rank_0", "evaluates on all ranks, but only rank 0 keeps the losses",
        check="every_rank_returns_the_losses", says="rank 1 returned []", on="only_rank_0", edit="""
        -    others = {entry for log in logs[1:] for entry in log}
        -    return {entry: [0] for entry in logs[0] if entry not in others}
        +    ranks_by_entry = {}
        +    for log in logs:
        +        for entry in log:
        +            ranks = [rank for rank, other in enumerate(logs) if entry in other]
        +            if len(ranks) < len(logs):
        +                ranks_by_entry[entry] = ranks
        +    return ranks_by_entry
        @@
        -        losses.append((total[0] / total[1]).item())
                 if rank == 0:  # one rank prints
        +            losses.append((total[0] / total[1]).item())
    """),
    WrongAnswer(
        "every_rank_prints", "prints on every rank",
        check="one_rank_reports", says="(rank 0: 4, rank 1: 4)", on="appends_on_rank_0", edit="""
        -        if rank == 0:  # one rank prints
        -            losses.append((total[0] / total[1]).item())
        -            print(f"epoch {epoch + 1}: held-out loss {losses[-1]:.4f}", flush=True)
        +        losses.append((total[0] / total[1]).item())
        +        print(f"epoch {epoch + 1}: held-out loss {losses[-1]:.4f}", flush=True)
    """),
    WrongAnswer(
        "forward_is_silent", "overlooks that DDP's forward broadcasts the buffers",
        check="the_symptoms_are_predicted", says="the run on 2 ranks ended with ('hang', 'broadcast')",
        on="appends_on_rank_0", edit="""
        -    if epochs > 1:  # rank 1 trains its second epoch: gradients of 5 numbers meet the 2 of the evaluation
        -        return "crash", "all_reduce"
        -    return "hang", "broadcast" if buffers else "all_reduce"  # rank 1 is in the barrier and sends nothing that fits
        +    return "crash" if epochs > 1 else "hang", "all_reduce"
        @@
        +        losses.append((total[0] / total[1]).item())
                 if rank == 0:  # one rank prints
        -            losses.append((total[0] / total[1]).item())
    """),
    WrongAnswer(
        "looks_into_joined_text", "looks for an entry in the log joined to one text, where line 6 is found in line 66",
        check="calls_not_on_all_ranks_are_found", says="lines 6 and 66: not_on_all", edit="""
        -    ranks_by_entry = {entry: [rank for rank, log in enumerate(logs) if entry in log] for entry in entries}
        +    ranks_by_entry = {entry: [rank for rank, log in enumerate(logs) if entry in "; ".join(log)] for entry in entries}
    """),
    WrongAnswer(
        "only_rank_0", "looks for calls that rank 0 makes alone",
        check="calls_not_on_all_ranks_are_found", says="rank 0 alone called the all_reduce", edit="""
         from torch.nn.parallel import DistributedDataParallel
        +
        +EPOCHS, BUFFERS = 2, True
        @@
        -    entries = dict.fromkeys(entry for log in logs for entry in log)
        -    ranks_by_entry = {entry: [rank for rank, log in enumerate(logs) if entry in log] for entry in entries}
        -    return {entry: ranks for entry, ranks in ranks_by_entry.items() if len(ranks) < len(logs)}
        +    others = {entry for log in logs[1:] for entry in log}
        +    return {entry: [0] for entry in logs[0] if entry not in others}
        @@
        -    train(epochs=2, buffers=True)
        +    train(EPOCHS, BUFFERS)
    """),
    WrongAnswer(
        "others_wait_in_a_barrier", "lets the other ranks wait in a barrier while rank 0 evaluates",
        check="does not end", says="in barrier", on="unrepaired", edit="""
                     print(f"epoch {epoch + 1}: held-out loss {losses[-1]:.4f}", flush=True)
        +        else:
        +            dist.barrier()
    """),
    WrongAnswer(
        "prints_its_own_share", "returns the right loss and prints that of rank 0's own points",
        check="one_rank_reports", says="rank 0 printed a held-out loss of", edit="""
        -            print(f"epoch {epoch + 1}: held-out loss {losses[-1]:.4f}", flush=True)
        +            print(f"epoch {epoch + 1}: held-out loss {errors.mean():.4f}", flush=True)
    """),
    WrongAnswer(
        "two_epochs_without_buffers", "expects that without buffers it always hangs",
        check="the_symptoms_are_predicted",
        says="symptom(epochs=2, buffers=False) returned ('hang', 'all_reduce')", edit="""
        -    if epochs > 1:  # rank 1 trains its second epoch: gradients of 5 numbers meet the 2 of the evaluation
        -        return "crash", "all_reduce"
        -    return "hang", "broadcast" if buffers else "all_reduce"  # rank 1 is in the barrier and sends nothing that fits
        +    if not buffers:
        +        return "hang", "all_reduce"
        +    return ("crash", "all_reduce") if epochs > 1 else ("hang", "broadcast")
    """),
    WrongAnswer(
        "unrepaired", "leaves the evaluation under the if",
        state="crashed", check="dies", says="killed by SIGABRT", on="appends_on_rank_0", edit="""
        -        with torch.no_grad():  # on every rank, with the bare model: its forward does not communicate
        -            errors = (model.module(held_out_x) - held_out_y).square()
        -        total = torch.stack([errors.sum(), torch.tensor(len(errors))])
        -        dist.all_reduce(total)
                 if rank == 0:  # one rank prints
        +            with torch.no_grad():
        +                errors = (model(held_out_x) - held_out_y).square()
        +            total = torch.stack([errors.sum(), torch.tensor(len(errors))])
        +            dist.all_reduce(total)
    """),
    WrongAnswer(
        "without_ddp", "trains with the bare model as well: gradients are no longer averaged",
        check="every_rank_returns_the_losses", says="the mean over all held-out points is",
        on="appends_on_rank_0", edit="""
        -            loss = (model(x[batch]) - y[batch]).square().mean()
        +            loss = (model.module(x[batch]) - y[batch]).square().mean()
        @@
        +        losses.append((total[0] / total[1]).item())
                 if rank == 0:  # one rank prints
        -            losses.append((total[0] / total[1]).item())
    """),
    RightAnswer(
        "gathers_through_the_wrapper", "every rank evaluates through the wrapper and gathers (sum, count)",
        edit="""
         from torch.nn.parallel import DistributedDataParallel
        +
        +EPOCHS, BUFFERS = 2, True
        @@
        -    entries = dict.fromkeys(entry for log in logs for entry in log)
        -    ranks_by_entry = {entry: [rank for rank, log in enumerate(logs) if entry in log] for entry in entries}
        -    return {entry: ranks for entry, ranks in ranks_by_entry.items() if len(ranks) < len(logs)}
        +    ranks_by_entry = {}
        +    for log in logs:
        +        for entry in log:
        +            ranks = [rank for rank, other in enumerate(logs) if entry in other]
        +            if len(ranks) < len(logs):
        +                ranks_by_entry[entry] = ranks
        +    return ranks_by_entry
        @@
        -            errors = (model.module(held_out_x) - held_out_y).square()
        -        total = torch.stack([errors.sum(), torch.tensor(len(errors))])
        -        dist.all_reduce(total)
        -        losses.append((total[0] / total[1]).item())
        -        if rank == 0:  # one rank prints
        +            errors = (model(held_out_x) - held_out_y).square()
        +        pairs = [None] * world
        +        dist.all_gather_object(pairs, (errors.double().sum().item(), len(errors)))
        +        losses.append(sum(a for a, _ in pairs) / sum(b for _, b in pairs))
        +        if rank == world - 1:
        @@
        -    train(epochs=2, buffers=True)
        +    train(EPOCHS, BUFFERS)
    """),
    RightAnswer(
        "last_rank_reports", "gathers every point's error as objects; the last rank prints",
        edit="""
        -        total = torch.stack([errors.sum(), torch.tensor(len(errors))])
        -        dist.all_reduce(total)
        -        losses.append((total[0] / total[1]).item())
        -        if rank == 0:  # one rank prints
        +        gathered = [None] * world
        +        dist.all_gather_object(gathered, errors.tolist())
        +        gathered = [error for errors in gathered for error in errors]
        +        losses.append(sum(gathered) / len(gathered))
        +        if rank == world - 1:  # one rank prints
    """),
    RightAnswer(
        "rank_0_evaluates_and_broadcasts",
        "rank 0 evaluates all points with the bare model and broadcasts the loss; the detector uses sets",
        on="given", edit="""
         EPOCHS, BUFFERS = 2, True
        +
        +
        +def symptom(epochs, buffers):
        +    table = {(1, True): ["hang", "broadcast"], (1, False): ["hang", "all_reduce"]}
        +    return table.get((epochs, buffers), ["crash", "all_reduce"])
        +
        +
        +def not_on_all(logs):
        +    sets = [set(log) for log in logs]
        +    rare = set().union(*sets) - set.intersection(*sets)
        +    return {entry: [rank for rank, log in enumerate(sets) if entry in log] for entry in sorted(rare)}
        @@
        +        box = [None]

                 if rank == 0:
        +            all_x, all_y = points(7, seed=3)
                     with torch.no_grad():
        -                errors = (model(held_out_x) - held_out_y).square()
        -            total = torch.stack([errors.sum(), torch.tensor(len(errors))])
        -            dist.all_reduce(total)
        -            losses.append((total[0] / total[1]).item())
        -            print(f"epoch {epoch + 1}: held-out loss {losses[-1]:.4f}", flush=True)
        +                box[0] = (model.module(all_x) - all_y).square().mean().item()
        +            print(f"epoch {epoch + 1}: held-out loss {box[0]:.4f}", flush=True)
        +        dist.broadcast_object_list(box, src=0)
        +        losses.append(box[0])
    """),
    RightAnswer(
        "words_between", "names the epoch between the words and the loss",
        edit="""
        -            print(f"epoch {epoch + 1}: held-out loss {losses[-1]:.4f}", flush=True)
        +            print(f"held-out loss after epoch {epoch + 1}: {losses[-1]:.4f}", flush=True)
    """),
)
