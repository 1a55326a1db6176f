"""Wrong and right answers to question 09.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "adds_a_time", "writes more than it was given",
        check="they_hold_what_was_saved", says="they have the entries by_rank, rank, saved_at",
        on="saves_the_step_alone", edit="""
        -        torch.save(state, final.with_suffix(".tmp"))
        +        torch.save({**state, "saved_at": time.time(), "by_rank": dist.get_rank()}, final.with_suffix(".tmp"))
    """),
    WrongAnswer(
        "any_content_will_do", "counts the files that can be loaded and does not look at what is in them",
        check="the_check_fails_what_is_broken", says="without the tensors: check_save returned True",
        on="saves_the_step_alone", edit="""
        -                steps.append(torch.load(path)["step"])
        +                torch.load(path)
        +                steps.append(len(steps) + 1)
    """),
    WrongAnswer(
        "asks_for_its_own_names", "the check asks for the names that its own save gives",
        check="the_check_passes_what_is_right", says="this save is right", on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        +        final = Path(folder) / f"step_{step:06d}.pt"
        @@
        -    for path in Path(folder).iterdir() if Path(folder).is_dir() else []:
        +    for path in Path(folder).glob("step_*.pt") if Path(folder).is_dir() else []:
    """),
    WrongAnswer(
        "at_least", "is content if the wanted files are among those that are there",
        check="the_check_fails_what_is_broken",
        says="copies the files that are there already: check_save returned True", on="saves_the_step_alone", edit="""
        -        fine &= steps_in(f"{folder}/shared") == list(range(1, step + 1))  # at once, on every rank
        +        fine &= set(range(1, step + 1)) <= set(steps_in(f"{folder}/shared"))  # at once, on every rank
    """),
    WrongAnswer(
        "counts_after_one_save", "repairs the save and leaves the check that counts files after one save",
        check="the_check_fails_what_is_broken", says="the given one: check_save returned True", text='''
        import os
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
            dist.barrier()  # whoever returns finds it there


        def check_save(save, folder):
            """Whether `save` works. Called on every rank; there is no folder `folder` yet."""
            save(folder, 1, {"step": 1, "weights": torch.zeros(1000)})
            return len(list(Path(folder).iterdir())) == 1  # one checkpoint, and not one for each rank
    '''),
    WrongAnswer(
        "counts_and_does_not_load", "counts the files and loads none",
        check="the_check_fails_what_is_broken", says="only half of the file: check_save returned True",
        on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        +        final = Path(folder) / f"step_{step:06d}.pt"
        @@
        -        try:
        -            steps.append(torch.load(path)["step"])
        -        except Exception:
        -            steps.append(None)
        +        steps.append(len(steps) + (path.stat().st_size > 0))
    """),
    WrongAnswer(
        "does_not_ask_who_wrote", "finds one file for each save and does not ask who wrote it",
        check="the_check_fails_what_is_broken",
        says="every rank writes, named by the step: check_save returned True", on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        +        final = Path(folder) / f"step_{step:06d}.pt"
        @@
        -    rank = dist.get_rank()
        -    save(f"{folder}/rank_{rank}", 1, {"step": 1})  # a folder for each rank: who writes shows
        -    fine = steps_in(f"{folder}/rank_{rank}") == ([1] if rank == 0 else [])
        +    fine = True
    """),
    WrongAnswer(
        "equal_states", "the check passes the same state on every rank",
        check="the_check_fails_what_is_broken", says="the state of the last rank: check_save returned True", edit="""
        -        return {"step": step, "rank": rank, "weights": torch.arange(5) + 10 * step + rank}
        +        return {"step": step, "weights": torch.arange(5) + 10 * step}
    """),
    WrongAnswer(
        "named_by_the_second", "lets rank 0 alone write, still named by the second",
        check="every_save_leaves_a_file", says="saves of different steps there were 1,", text='''
        import os
        import time
        from pathlib import Path

        import torch
        import torch.distributed as dist


        def save(folder, step, state):
            """Keep `state`, a dict, as it is after `step` steps. Called on every rank; makes the folder if there is none."""
            if dist.get_rank() == 0:
                Path(folder).mkdir(parents=True, exist_ok=True)
                final = Path(folder) / f"model_{int(time.time())}.pt"
                torch.save(state, final.with_suffix(".tmp"))
                os.replace(final.with_suffix(".tmp"), final)
            dist.barrier()  # whoever returns finds it there


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
        "nobody_waits", "the other ranks do not wait for rank 0",
        check="every_rank_finds_it", says="returned on rank 1, there were 0 files",
        on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        +        final = Path(folder) / f"step_{step:06d}.pt"
                 torch.save(state, final.with_suffix(".tmp"))
                 os.replace(final.with_suffix(".tmp"), final)
        -    dist.barrier()  # whoever returns finds it there
    """),
    WrongAnswer(
        "numbered_by_count", "names a file by the number of files that are there",
        check="every_save_leaves_a_file", says="after the save of step 4 there were 2, of steps 2 and 4",
        on="saves_the_step_alone", edit="""
        -        final = Path(folder) / f"step_{step:06d}.pt"
        +        final = Path(folder) / f"model_{len(list(Path(folder).iterdir())):06d}.pt"
    """),
    WrongAnswer(
        "only_rank_0_looks", "only rank 0 looks, the others say True",
        check="the_check_fails_what_is_broken", says="False on rank 0 and True on rank 1",
        on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        +        final = Path(folder) / f"step_{step:06d}.pt"
        @@
        -    verdict = torch.tensor(int(fine))
        -    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
        -    return bool(verdict)
        +    return fine if rank == 0 else True
    """),
    WrongAnswer(
        "raises", "raises where it should return False",
        state="crashed", check="raises", says="rank 1 raised AssertionError", on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        +        final = Path(folder) / f"step_{step:06d}.pt"
        @@
        +    assert fine or rank == 0, "broken"
             for step in (1, 2, 3):
                 save(f"{folder}/shared", step, {"step": step})
        -        fine &= steps_in(f"{folder}/shared") == list(range(1, step + 1))  # at once, on every rank
        +        assert steps_in(f"{folder}/shared") == list(range(1, step + 1)), "broken"
    """),
    WrongAnswer(
        "saves_the_step_alone", "the check saves a step and no tensor",
        check="the_check_fails_what_is_broken", says="without the tensors: check_save returned True",
        on="given", edit='''
         import json
        +import os
        @@
        -    Path(folder).mkdir(parents=True, exist_ok=True)
        -    torch.save(state, Path(folder) / f"model_{int(time.time())}.pt")
        +    if dist.get_rank() == 0:
        +        Path(folder).mkdir(parents=True, exist_ok=True)
        +        final = Path(folder) / f"step_{step:06d}.pt"
        +        torch.save(state, final.with_suffix(".tmp"))
        +        os.replace(final.with_suffix(".tmp"), final)
        +    dist.barrier()  # whoever returns finds it there
        @@
        -    save(folder, 1, {"step": 1, "weights": torch.zeros(1000)})
        -    return len(list(Path(folder).iterdir())) == 1  # one checkpoint, and not one for each rank
        +    def steps_in(folder):
        +        """The steps of the files in `folder`; None for a file that cannot be loaded."""
        +        steps = []
        +        for path in Path(folder).iterdir() if Path(folder).is_dir() else []:
        +            try:
        +                steps.append(torch.load(path)["step"])
        +            except Exception:
        +                steps.append(None)
        +        return sorted(steps, key=str)
        +
        +    rank = dist.get_rank()
        +    save(f"{folder}/rank_{rank}", 1, {"step": 1})  # a folder for each rank: who writes shows
        +    fine = steps_in(f"{folder}/rank_{rank}") == ([1] if rank == 0 else [])
        +    for step in (1, 2, 3):
        +        save(f"{folder}/shared", step, {"step": step})
        +        fine &= steps_in(f"{folder}/shared") == list(range(1, step + 1))  # at once, on every rank
        +        dist.barrier()  # everybody has looked: now the next one may begin
        +    verdict = torch.tensor(int(fine))
        +    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
        +    return bool(verdict)
    '''),
    WrongAnswer(
        "tries_its_own_save", "checks its own save, whatever it is given",
        check="the_check_passes_what_is_right", says="check_save never called the `save` it was given",
        on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        +        final = Path(folder) / f"step_{step:06d}.pt"
        @@
        -def check_save(save, folder):
        +def check_save(_, folder):
    """),
    WrongAnswer(
        "unrepaired", "leaves both as they were",
        check="rank_0_writes_and_nobody_else", says="rank 0 and rank 1 wrote in one call", text='''
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
        "waits_before_it_looks", "a barrier between the save and the look hides who did not wait",
        check="the_check_fails_what_is_broken", says="the others return at once: check_save returned True",
        on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        +        final = Path(folder) / f"step_{step:06d}.pt"
        @@
             save(f"{folder}/rank_{rank}", 1, {"step": 1})  # a folder for each rank: who writes shows
        +    dist.barrier()
        @@
                 save(f"{folder}/shared", step, {"step": step})
        +        dist.barrier()
    """),
    WrongAnswer(
        "weights_alone", "saves the tensors of the state and not the step",
        check="they_hold_what_was_saved", says="['none', 'none', 'none']", on="named_by_the_second", edit="""
        -        final = Path(folder) / f"model_{int(time.time())}.pt"
        -        torch.save(state, final.with_suffix(".tmp"))
        +        final = Path(folder) / f"step_{step:06d}.pt"
        +        torch.save({k: v for k, v in state.items() if torch.is_tensor(v)}, final.with_suffix(".tmp"))
    """),
    WrongAnswer(
        "folder_must_be_there", "writes into the folder and does not make it",
        state="crashed", check="raises", says="does not exist", edit="""
        -        Path(folder).mkdir(parents=True, exist_ok=True)
    """),
    WrongAnswer(
        "looks_at_two_saves", "the check saves twice: whether the first file survives the third save, it does not ask",
        check="the_check_fails_what_is_broken", says="removes all files but the two newest: check_save returned True",
        look="when the third is saved", edit="""
        -    for step in (1, 2, 3):
        -        save(f"{folder}/shared", step, state_of(rank, step))
        +    for step in (1, 2):
        +        save(f"{folder}/shared", step, state_of(rank, step))
    """),
    WrongAnswer(
        "tries_elsewhere", "the check tries the save in a folder of its own choice",
        check="the_check_passes_what_is_right", says="was given the folder checks/", look="below that folder", edit="""
             rank = dist.get_rank()
             save(f"{folder}/rank_{rank}", 1, state_of(rank, 1))  # a folder for each rank: who writes shows
        +    folder = f"tried_{os.path.basename(folder)}"
        +    save(f"{folder}/rank_{rank}", 1, state_of(rank, 1))
    """),
    WrongAnswer(
        "looks_at_the_newest", "the check counts the files, and looks into the newest one only",
        check="the_check_fails_what_is_broken", says="puts the new state into the files of the steps before: check_save",
        look="as they were", edit="""
        -        saved.append(plain(state_of(0, step)))
        -        fine &= states_in(f"{folder}/shared") == saved  # at once, on every rank
        +        saved.append(plain(state_of(0, step)))
        +        states = states_in(f"{folder}/shared")
        +        fine &= len(states) == len(saved) and saved[-1] in states
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
        "a_folder_for_drafts", "writes in a folder of its own below, renames from there, and leaves it",
        check="every_save_leaves_a_file", says="there lay 1 folder in the folder", edit="""
        -        torch.save(state, final.with_suffix(".tmp"))
        -        os.replace(final.with_suffix(".tmp"), final)
        +        (Path(folder) / ".drafts").mkdir(exist_ok=True)
        +        torch.save(state, Path(folder) / ".drafts" / final.name)
        +        os.replace(Path(folder) / ".drafts" / final.name, final)
    """),
    WrongAnswer(
        "keeps_three", "removes all but the three newest",
        check="every_save_leaves_a_file", says="after the save of step 10 there were the files of steps 8 and 9 and 10",
        look="what `save` removes", edit="""
        -        os.replace(final.with_suffix(".tmp"), final)
        +        os.replace(final.with_suffix(".tmp"), final)
        +        for old in sorted(Path(folder).glob("step_*.pt"))[:-3]:
        +            old.unlink()
    """),
    WrongAnswer(
        "keeps_eight", "removes all but the eight newest",
        check="every_save_leaves_a_file", says="the files of steps 3 and 4 and 5", edit="""
        -        os.replace(final.with_suffix(".tmp"), final)
        +        os.replace(final.with_suffix(".tmp"), final)
        +        for old in sorted(Path(folder).glob("step_*.pt"))[:-8]:
        +            old.unlink()
    """),
    WrongAnswer(
        "adds_the_step", "puts the step into the state, which may have none",
        check="they_hold_what_was_saved", says="they have the entries rank, slow, step, steps, weights, given were", edit="""
        -        torch.save(state, final.with_suffix(".tmp"))
        +        torch.save({"step": step, **state}, final.with_suffix(".tmp"))
    """),
    WrongAnswer(
        "makes_float32", "saves every tensor of real numbers as float32",
        check="they_hold_what_was_saved", says="but not the given values or types", look="what is given to torch.save", edit="""
        -        torch.save(state, final.with_suffix(".tmp"))
        +        smaller = {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in state.items()}
        +        torch.save(smaller, final.with_suffix(".tmp"))
    """),
    WrongAnswer(
        "wants_two_files_of_one_step", "the check saves one step twice and wants two files",
        check="the_check_passes_what_is_right", says="your own save: check_save returned False; this save is right",
        look="a second file of one step", edit="""
             verdict = torch.tensor(int(fine))
        +    save(f"{folder}/shared", 3, state_of(rank, 3))
        +    verdict *= len(states_in(f"{folder}/shared")) == 4
    """),
    RightAnswer(
        "reads_who_wrote",
        "names nothing by the step; a broadcast is the wait; the check tells by the content who wrote",
        text="""
        import os
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


        def contents(folder):
            found = {}
            for name in os.listdir(folder) if os.path.isdir(folder) else []:
                try:
                    state = torch.load(os.path.join(folder, name))
                    found[name] = (state["step"], state["rank"], state["weights"].sum().item())
                except Exception:
                    found[name] = "broken"
            return found


        def check_save(save, folder):
            rank, problems, before = dist.get_rank(), [], {}
            for step in range(4):
                save(folder, step, {"step": step, "rank": rank, "weights": torch.full((5000,), float(step))})
                now = contents(folder)
                new = [now[name] for name in now if name not in before]
                if new != [(step, 0, 5000.0 * step)] or any(now.get(name) != before[name] for name in before):
                    problems.append(step)
                dist.barrier()
                before = now
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
