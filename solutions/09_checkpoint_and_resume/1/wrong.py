"""Wrong and right answers to question 09.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "waits_before_it_looks", "the check waits for all ranks before it looks, and sees by an empty folder who wrote",
        check="the_check_fails_what_is_broken", says="the others return at once: check_save returned True",
        look="makes them wait first", edit="""
        -    fine = texts_in(own) == (expected[:1] if rank == 0 else [])
        +    dist.barrier()
        +    fine = os.path.exists(own) == (rank == 0)
        @@
                 save(shared, step, state_of(rank, step))
        +        dist.barrier()
        @@
             save(shared, 4, state_of(rank, 4))
        +    dist.barrier()
    """),
    WrongAnswer(
        "no_rank_waits", "the other ranks do not wait for rank 0",
        check="every_rank_finds_the_file", says="returned on rank 1, there were 0 files",
        text='''
        import os
        import time
        from pathlib import Path

        import torch
        import torch.distributed as dist


        def save(folder, step, state):
            """Keep `state`, a dict, as it is after `step` steps. Called on every rank; makes the folder if there is none."""
            if dist.get_rank() == 0:
                Path(folder).mkdir(parents=True, exist_ok=True)
                final = Path(folder) / f"step_{step:06d}.pt"
                torch.save(state, final.with_suffix(".tmp"))
                os.replace(final.with_suffix(".tmp"), final)


        def check_save(save, folder):
            """Whether `save` works. Called on every rank; there is no folder `folder` yet."""
            rank = dist.get_rank()
            save(f"{folder}/rank_{rank}", 1, {"step": 1})  # a folder for each rank: who writes shows
            fine = steps_in(f"{folder}/rank_{rank}") == ([1] if rank == 0 else [])
            for step in (1, 2, 3):
                save(f"{folder}/shared", step, {"step": step})
                fine &= steps_in(f"{folder}/shared") == list(range(1, step + 1))  # at once, on every rank
                dist.barrier()  # everybody has looked: now the next one may begin
            verdict = torch.tensor(int(fine))
            dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
            return bool(verdict)


        def steps_in(folder):
            """The steps of the files in `folder`; None for a file that cannot be loaded."""
            steps = []
            for path in Path(folder).iterdir() if Path(folder).is_dir() else []:
                try:
                    steps.append(torch.load(path)["step"])
                except Exception:
                    steps.append(None)
            return sorted(steps, key=str)
    '''),
    WrongAnswer(
        "raises", "raises where it should return False",
        state="crashed", check="raises", says="rank 1 raised AssertionError", on="no_rank_waits",
        edit="""
                 os.replace(final.with_suffix(".tmp"), final)
        +    dist.barrier()  # whoever returns finds it there
        @@
             fine = steps_in(f"{folder}/rank_{rank}") == ([1] if rank == 0 else [])
        +    assert fine or rank == 0, "broken"
        @@
        -        fine &= steps_in(f"{folder}/shared") == list(range(1, step + 1))  # at once, on every rank
        +        assert steps_in(f"{folder}/shared") == list(range(1, step + 1)), "broken"
    """),
    WrongAnswer(
        "unrepaired", "leaves both as they were",
        check="only_rank_0_writes", says="rank 0 and rank 1 wrote in one call", text='''
        import time
        from pathlib import Path

        import torch


        def save(folder, step, state):
            """Keep `state`, a dict, as it is after `step` steps. Called on every rank; makes the folder if there is none."""
            Path(folder).mkdir(parents=True, exist_ok=True)
            torch.save(state, Path(folder) / f"model_{int(time.time())}.pt")


        def check_save(save, folder):
            """Whether `save` works. Called on every rank; there is no folder `folder` yet."""
            save(folder, 1, {"step": 1, "weights": torch.zeros(1000)})
            return len(list(Path(folder).iterdir())) == 1  # one checkpoint, and not one for each rank
    '''),
    WrongAnswer(
        "folder_must_be_there", "writes into the folder and does not make it",
        state="crashed", check="raises", says="does not exist", edit="""
        -        Path(folder).mkdir(parents=True, exist_ok=True)
    """),
    WrongAnswer(
        "compares_values_alone", "the check compares values: it misses that a file holds them in another dtype",
        check="the_check_fails_what_is_broken", says="with every tensor as float64: check_save returned True",
        look="dtypes", edit="""
        -    def state_of(rank, step):  # every rank has another one, or it would not show whose is in the file
        +    def values(state):
        +        return str(sorted((name, torch.as_tensor(v).double().tolist()) for name, v in state.items()))
        +
        +    def state_of(rank, step):
        @@
        -            return str(sorted(torch.load(path, weights_only=True).items()))
        +            return values(torch.load(path, weights_only=True))
        @@
        -    expected = [str(sorted(state_of(0, step).items())) for step in (1, 2, 3, 4)]
        +    expected = [values(state_of(0, step)) for step in (1, 2, 3, 4)]
    """),
    WrongAnswer(
        "tries_elsewhere", "the check tries the save outside the folder that it was given",
        check="the_check_passes_what_is_right", says="was given the folder checks/", look="below that folder", edit="""
             save(own, 1, state_of(rank, 1))  # a folder for each rank: who writes shows
        +    own, shared = (f"tried_{os.path.basename(folder)}/{name}" for name in (f"rank_{rank}", "shared"))
        +    save(own, 1, state_of(rank, 1))
    """),
    WrongAnswer(
        "leaves_the_temporary_file", "copies the temporary file to its name and leaves it there",
        check="every_save_leaves_a_file", says="there were 2, 4 and 6 files", edit="""
        -        os.replace(final.with_suffix(".tmp"), final)
        +        shutil.copy(final.with_suffix(".tmp"), final)
    """),
    WrongAnswer(
        "a_folder_for_each_step", "writes each file into a folder of its own, below the one that it was given",
        check="every_save_leaves_a_file", says="there lay 10 folders in the folder",
        look="one more file in the folder, and nothing else", edit="""
        -        Path(folder).mkdir(parents=True, exist_ok=True)
        -        final = Path(folder) / f"step_{step:06d}.pt"
        +        final = Path(folder) / f"step_{step:06d}" / "state.pt"
        +        final.parent.mkdir(parents=True, exist_ok=True)
    """),
    WrongAnswer(
        "adds_the_step", "puts the step into the state, which may have none",
        check="the_files_hold_what_was_saved", says="they have the entries rank, slow, step, steps, weights, given were", edit="""
        -        torch.save(state, final.with_suffix(".tmp"))
        +        torch.save({"step": step, **state}, final.with_suffix(".tmp"))
    """),
    WrongAnswer(
        "makes_float32", "saves every tensor of real numbers as float32",
        check="the_files_hold_what_was_saved", says="but not the given values or types", look="what is given to torch.save", edit="""
        -        torch.save(state, final.with_suffix(".tmp"))
        +        smaller = {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in state.items()}
        +        torch.save(smaller, final.with_suffix(".tmp"))
    """),
    WrongAnswer(
        "wants_two_files_of_one_step", "the check saves one step twice and wants two files",
        check="the_check_passes_what_is_right", says="your own save: check_save returned False; this save is right",
        look="a second file of one step", edit="""
             fine &= texts_in(shared) == expected[1:]
        +    save(shared, 3, state_of(rank, 3))
        +    fine &= len(texts_in(shared)) == 4
    """),
    RightAnswer(
        "reads_who_wrote",
        "random names of files; a broadcast in place of the barrier; the check reads who wrote, and sleeps",
        text="""
        import os
        import time
        import uuid
        from pathlib import Path

        import torch
        import torch.distributed as dist


        def save(folder, step, state):
            written = [None]
            if dist.get_rank() == 0:
                os.makedirs(folder, exist_ok=True)
                written = [str(Path(folder, f"{uuid.uuid4().hex}.pt"))]
                with open(written[0], "wb") as file:
                    torch.save(state, file)
                    os.fsync(file.fileno())
            dist.broadcast_object_list(written, src=0)


        def state_of(rank, step):
            return {"step": step, "rank": rank, "weights": torch.full((5000,), float(step))}


        def listed(state):
            return [(name, getattr(value, "dtype", ""), torch.as_tensor(value).tolist()) for name, value in state.items()]


        def contents(folder):
            found = {}
            for name in os.listdir(folder) if os.path.isdir(folder) else []:
                try:
                    found[name] = listed(torch.load(os.path.join(folder, name)))
                except Exception:
                    found[name] = "broken"
            return found


        def check_save(save, folder):
            rank, problems, before = dist.get_rank(), [], {}
            for step in range(4):
                for name in [name for name in before if step == 3 and before[name] == listed(state_of(0, 0))]:
                    del before[name]
                    if rank == 0:
                        os.remove(os.path.join(folder, name))
                dist.barrier()
                save(folder, step, state_of(rank, step))
                now = contents(folder)
                new = [now[name] for name in now if name not in before]
                if new != [listed(state_of(0, step))] or any(now.get(name) != before[name] for name in before):
                    problems.append(step)
                dist.barrier()
                time.sleep(0.25)  # for a rank that is still writing
                before = contents(folder)
                dist.barrier()
            everyones = [None] * dist.get_world_size()
            dist.all_gather_object(everyones, problems)
            return not any(everyones)
    """),
    RightAnswer(
        "tempfile_name", "save takes its names from tempfile",
        edit="""
         import shutil
        +import tempfile
        @@
        -        final = Path(folder) / f"step_{step:06d}.pt"
        -        torch.save(state, final.with_suffix(".tmp"))
        -        os.replace(final.with_suffix(".tmp"), final)
        +        handle, _ = tempfile.mkstemp(suffix=".pt", dir=folder)
        +        with open(handle, "wb") as file:
        +            torch.save(state, file)
    """),
)
