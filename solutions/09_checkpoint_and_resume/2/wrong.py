"""Wrong and right answers to question 09.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "applies_then_verifies", "loads the state before it verifies that the checkpoint is whole",
        check="without_a_whole_one_nothing_changes",
        says="one bit was wrong: `load` returned 0 on rank 0 and changed the weights", edit="""
                 state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        +        state["digest"] = digest_of(model, optimizer)
        @@
        -            file.write(hashlib.sha256(data).digest() + data)
        +            file.write(data)
        @@
             dist.barrier()  # whoever returns finds it there
        +
        +
        +def digest_of(model, optimizer):
        +    hashed = hashlib.sha256()
        +    for tensor in model.state_dict().values():
        +        hashed.update(tensor.numpy().tobytes())
        +    for moments in optimizer.state.values():
        +        for _, value in sorted(moments.items()):
        +            hashed.update(torch.as_tensor(value).numpy().tobytes())
        +    return hashed.hexdigest()
        @@
        -        content = path.read_bytes() if path.is_file() else b""
        -        if hashlib.sha256(content[32:]).digest() != content[:32]:
        +        try:
        +            state = torch.load(path, weights_only=True)
        +            model.load_state_dict(state["model"])
        +            optimizer.load_state_dict(state["optimizer"])
        +            if digest_of(model, optimizer) != state["digest"]:
        +                continue
        +        except Exception:
                     continue  # torn, damaged, or somebody else's
        -        state = torch.load(io.BytesIO(content[32:]), weights_only=True)
        -        model.load_state_dict(state["model"])
        -        optimizer.load_state_dict(state["optimizer"])
    """),
    WrongAnswer(
        "every_rank_writes", "every rank writes the whole checkpoint, each under a temporary name of its own",
        check="only_rank_0_writes_the_weights", says="rank 1 wrote a file", edit="""
        -    if dist.get_rank() == 0:
        +    if True:
        @@
        -        temporary = final.with_suffix(".tmp")  # load never looks at it
        +        temporary = final.with_suffix(f".{dist.get_rank()}.tmp")  # load never looks at it
    """),
    WrongAnswer(
        "gathers_on_rank_0_only", "gathers the random states under `if rank == 0`",
        check="does not end", says="rank 0 was in all_gather", edit="""
        -    random_states = [None] * dist.get_world_size()
        -    dist.all_gather_object(random_states, torch.get_rng_state())  # every rank has its own
             if dist.get_rank() == 0:
        +        random_states = [None] * dist.get_world_size()
        +        dist.all_gather_object(random_states, torch.get_rng_state())
    """),
    WrongAnswer(
        "no_barrier", "the other ranks do not wait for rank 0",
        check="every_rank_waits_for_the_checkpoint", says="before rank 0 had it on the disk", edit="""
        -    dist.barrier()  # whoever returns finds it there
    """),
    WrongAnswer(
        "no_checksum", "regards every file that torch.load can read as whole",
        check="damaged_files_are_passed_over", says="one bit of the checkpoint of step 13 wrong: rank 0", edit="""
        -            file.write(hashlib.sha256(data).digest() + data)
        +            file.write(data)
        @@
        -        content = path.read_bytes() if path.is_file() else b""
        -        if hashlib.sha256(content[32:]).digest() != content[:32]:
        +        try:
        +            state = torch.load(path, weights_only=True)
        +            state["random_states"]
        +        except Exception:
                     continue  # torn, damaged, or somebody else's
        -        state = torch.load(io.BytesIO(content[32:]), weights_only=True)
    """),
    WrongAnswer(
        "no_random_state", "leaves the random states out",
        check="a_stopped_run_resumes_bit_for_bit", says="on this rank: the random state", edit="""
        -    random_states = [None] * dist.get_world_size()
        -    dist.all_gather_object(random_states, torch.get_rng_state())  # every rank has its own
        @@
        -        torch.save(state | {"random_states": random_states}, buffer)
        +        torch.save(state, buffer)
        @@
        -        torch.set_rng_state(state["random_states"][dist.get_rank()])
    """),
    WrongAnswer(
        "not_flushed", "closes the file and renames it without fsync: the bytes may not be on the disk yet",
        check="saved_files_are_flushed", says="had not been flushed to the disk", edit="""
        -            os.fsync(file.fileno())
    """),
    WrongAnswer(
        "one_file", "keeps one checkpoint under one name",
        check="damaged_files_are_passed_over",
        says="began at step 0; `save` had deleted or overwritten the checkpoint of step 11", edit="""
        -        final = Path(folder) / f"step_{step:06d}.pt"
        +        final = Path(folder) / "ckpt.pt"
        @@
        -    for path in sorted(Path(folder).glob("step_*.pt"), reverse=True):
        +    for path in Path(folder).glob("ckpt.pt"):
    """),
    WrongAnswer(
        "prunes_by_name", "keeps the two files with the highest numbers, whatever they hold",
        check="foreign_files_are_left_alone", says="`save` had deleted or overwritten the checkpoint of step 14",
        look="how many checkpoints `save` keeps", edit="""
                 os.replace(temporary, final)
        +        for old in sorted(path for path in Path(folder).glob("step_*.pt") if path.is_file())[:-2]:
        +            old.unlink()
    """),
    WrongAnswer(
        "runs_foreign_code", "loads every file it finds, without weights_only",
        check="foreign_files_are_left_alone", says="`load` ran code", edit="""
        -        if hashlib.sha256(content[32:]).digest() != content[:32]:
        +        whole = hashlib.sha256(content[32:]).digest() == content[:32]
        +        try:
        +            state = torch.load(io.BytesIO(content[32:]) if whole else path, weights_only=False)
        +        except Exception:
                     continue  # torn, damaged, or somebody else's
        -        state = torch.load(io.BytesIO(content[32:]), weights_only=True)
        +        if not whole:
        +            continue
    """),
    WrongAnswer(
        "seeds_when_empty", "seeds torch if there is no checkpoint",
        check="without_a_whole_one_nothing_changes",
        says="the folder was empty: `load` returned 0 on rank 0 and changed the random state", edit="""
                 return state["step"]
        +    torch.manual_seed(1234 + dist.get_rank())  # a fresh start
    """),
    WrongAnswer(
        "sorts_by_time", "takes the file that was written last for the newest checkpoint",
        check="the_largest_step_is_loaded", says="after that of step 100, `load` returned 99", look="times", edit="""
        -    for path in sorted(Path(folder).glob("step_*.pt"), reverse=True):
        +    for path in sorted(Path(folder).glob("step_*.pt"), key=os.path.getmtime, reverse=True):
    """),
    WrongAnswer(
        "temporary_must_not_exist", "opens the temporary file exclusively, and stumbles over what a killed save left",
        state="crashed", check="raises", says="raised FileExistsError", edit="""
        -        with open(temporary, "wb") as file:
        +        with open(temporary, "xb") as file:
    """),
    WrongAnswer(
        "trusts_the_newest", "raises if the newest checkpoint cannot be read",
        state="crashed", check="raises", says="raised RuntimeError", edit="""
        -            file.write(hashlib.sha256(data).digest() + data)
        +            file.write(data)
        @@
        -        content = path.read_bytes() if path.is_file() else b""
        -        if hashlib.sha256(content[32:]).digest() != content[:32]:
        -            continue  # torn, damaged, or somebody else's
        -        state = torch.load(io.BytesIO(content[32:]), weights_only=True)
        +        state = torch.load(path, weights_only=True)
    """),
    WrongAnswer(
        "two_digits", "names with two digits, sorted as text",
        check="the_largest_step_is_loaded", says="after that of step 100, `load` returned 99", edit="""
        -        final = Path(folder) / f"step_{step:06d}.pt"
        +        final = Path(folder) / f"step_{step:02d}.pt"
    """),
    WrongAnswer(
        "two_renames", "moves the newest aside before the new one has its name, and starts afresh if there is none",
        check="kills_cost_nothing_that_was_saved", says="was killed at a rename", edit="""
        -        final = Path(folder) / f"step_{step:06d}.pt"
        +        final = Path(folder) / "newest.pt"
        @@
                     os.fsync(file.fileno())
        +        if final.exists():
        +            os.replace(final, final.with_name("previous.pt"))
        @@
        -    for path in sorted(Path(folder).glob("step_*.pt"), reverse=True):
        +    if not (Path(folder) / "newest.pt").exists():
        +        return 0
        +    for path in (Path(folder) / "newest.pt", Path(folder) / "previous.pt"):
    """),
    RightAnswer(
        "checksum_in_the_name", "the checksum is a part of the file's name",
        edit="""
        -        final = Path(folder) / f"step_{step:06d}.pt"
        +        final = Path(folder) / f"{step}-{hashlib.sha256(data).hexdigest()}.ckpt"
                 temporary = final.with_suffix(".tmp")  # load never looks at it
                 with open(temporary, "wb") as file:
        -            file.write(hashlib.sha256(data).digest() + data)
        +            file.write(data)
        @@
        -    for path in sorted(Path(folder).glob("step_*.pt"), reverse=True):
        +    def number(path):
        +        return int(path.name.split("-")[0]) if path.name.split("-")[0].isdecimal() else -1
        +
        +    for path in sorted(Path(folder).glob("*-*.ckpt"), key=number, reverse=True):
                 content = path.read_bytes() if path.is_file() else b""
        -        if hashlib.sha256(content[32:]).digest() != content[:32]:
        +        if hashlib.sha256(content).hexdigest() != path.stem.partition("-")[2]:
                     continue  # torn, damaged, or somebody else's
        -        state = torch.load(io.BytesIO(content[32:]), weights_only=True)
        +        state = torch.load(io.BytesIO(content), weights_only=True)
    """),
    RightAnswer(
        "rank_0_reads", "rank 0 alone reads the folder and broadcasts what it found",
        edit="""
        -    for path in sorted(Path(folder).glob("step_*.pt"), reverse=True):
        -        content = path.read_bytes() if path.is_file() else b""
        -        if hashlib.sha256(content[32:]).digest() != content[:32]:
        -            continue  # torn, damaged, or somebody else's
        -        state = torch.load(io.BytesIO(content[32:]), weights_only=True)
        +    found = [b""]
        +    if dist.get_rank() == 0:
        +        for path in sorted(Path(folder).glob("step_*.pt"), reverse=True):
        +            content = path.read_bytes() if path.is_file() else b""
        +            if hashlib.sha256(content[32:]).digest() == content[:32]:
        +                found = [content[32:]]
        +                break
        +    dist.broadcast_object_list(found, src=0)
        +    if found[0]:
        +        state = torch.load(io.BytesIO(found[0]), weights_only=True)
    """),
    RightAnswer(
        "the_courses_own", "the functions of the course's package, a folder for each step",
        text='''
        from pathlib import Path

        import torch
        import torch.distributed as dist

        from ddp_course.distributed.process_group import World
        from ddp_course.distributed.sync import from_rank_0, gather_objects
        from ddp_course.base.errors import InputError
        from ddp_course.checkpoint import checkpoint


        def world():
            return World(dist.get_rank(), dist.get_rank(), dist.get_world_size(), torch.device("cpu"))


        def save(folder, step, model, optimizer):
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state["random"] = gather_objects(checkpoint.random_state(world().device))
            from_rank_0(world(), lambda: checkpoint.save(Path(folder), step, state, keep=0))


        def newest_valid(folder):
            try:
                return checkpoint.newest_valid(Path(folder))
            except InputError:  # the course's own refuses to begin anew where all checkpoints are damaged; here it is 0
                return None


        def load(folder, model, optimizer):
            path = from_rank_0(world(), lambda: newest_valid(folder))
            if path is None:
                return 0
            state = checkpoint.load(path)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            checkpoint.restore_random_state(state["random"][dist.get_rank()], torch.device("cpu"))
            return state["step"]


        def train(training):
            """Given: go on from the newest checkpoint and save after every step."""
            step = load(training.folder, training.model, training.optimizer)
            while step < training.until:
                training.step(step)
                step += 1
                save(training.folder, step, training.model, training.optimizer)
    '''),
    RightAnswer(
        "two_slots",
        "two files that are overwritten in turn, no rename; each rank keeps its random state in a file of its own",
        text=r'''
        import json
        import os
        import zlib
        from pathlib import Path

        import torch
        import torch.distributed as dist


        def write(path, state):
            torch.save(state, path.with_suffix(".data"))
            content = path.with_suffix(".data").read_bytes()
            with open(path, "wb") as file:
                file.write(json.dumps([state["step"], len(content), zlib.crc32(content)]).encode() + b"\n" + content)
                file.flush()
                os.fdatasync(file.fileno())
            with open(path.with_suffix(".data"), "rb") as file:
                os.fsync(file.fileno())


        def read(path):
            try:
                head, _, content = path.read_bytes().partition(b"\n")
                step, size, checksum = json.loads(head)
            except (OSError, ValueError):
                return None
            if len(content) != size or zlib.crc32(content) != checksum:
                return None
            path.with_suffix(f".{os.getpid()}.copy").write_bytes(content)
            state = torch.load(path.with_suffix(f".{os.getpid()}.copy"))
            path.with_suffix(f".{os.getpid()}.copy").unlink()
            return state


        def save(folder, step, model, optimizer):
            slot, rank = step % 2, dist.get_rank()
            write(Path(folder) / f"slot_{slot}_random_{rank}", {"step": step, "random": torch.get_rng_state()})
            dist.barrier()
            if rank == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                write(Path(folder) / f"slot_{slot}", state)
            dist.barrier()


        def load(folder, model, optimizer):
            found = []
            for slot in (0, 1):
                state = read(Path(folder) / f"slot_{slot}")
                random = read(Path(folder) / f"slot_{slot}_random_{dist.get_rank()}")
                if state and random and state["step"] == random["step"]:
                    found.append((state["step"], state, random))
            steps = [None] * dist.get_world_size()
            dist.all_gather_object(steps, {step for step, _, _ in found})
            common = set.intersection(*steps)
            if not common:
                return 0
            [(step, state, random)] = [one for one in found if one[0] == max(common)]
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(random["random"])
            return step


        def train(training):
            """Given: go on from the newest checkpoint and save after every step."""
            step = load(training.folder, training.model, training.optimizer)
            while step < training.until:
                training.step(step)
                step += 1
                save(training.folder, step, training.model, training.optimizer)
    '''),
)
