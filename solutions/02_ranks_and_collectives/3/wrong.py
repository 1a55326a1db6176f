"""Wrong and right answers to question 02.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "all_reduce", "calls the collective that it should build",
        check="only_send_and_recv", says="rank 0 called all_reduce (line 5)", text="""
        from torch.distributed import all_reduce


        def ring_all_reduce(tensor):
            all_reduce(tensor)
    """),
    WrongAnswer(
        "all_send_first", "every rank sends before any receives",
        check="does not end",
        says="rank 0 was in send to rank 1 (line 14), rank 1 was in send to rank 2 (line 14)", edit="""
        -        sending = dist.isend(chunks[(rank - k) % world], right)
        +        dist.send(chunks[(rank - k) % world], right)
                 dist.recv(received, left)
        -        sending.wait()
        @@
        -        sending = dist.isend(chunks[(rank + 1 - k) % world], right)
        +        dist.send(chunks[(rank + 1 - k) % world], right)
                 dist.recv(chunks[(rank - k) % world], left)
        -        sending.wait()
    """),
    WrongAnswer(
        "chunk_gives_fewer", "torch.chunk gives fewer than N chunks if there are few elements",
        state="crashed", check="raises", says="(shape (3,), float32): rank", edit="""
        -    chunks = tensor.view(-1).tensor_split(world)  # views; some are empty if there are fewer elements than ranks
        +    chunks = tensor.view(-1).chunk(world)
    """),
    WrongAnswer(
        "float32_buffer", "receives into a buffer of torch's default dtype",
        state="crashed", check="dies", says="was killed by SIGABRT", edit="""
        -        received = torch.empty_like(chunk)
        +        received = torch.empty(chunk.numel())
    """),
    WrongAnswer(
        "one_rank_sends_to_itself", "does not handle a group of one rank",
        state="crashed", check="raises", says="with 1 rank (shape (4,), float32): rank 0 raised", edit="""
        -    for k in range(world - 1):  # what arrives is added: in the end chunk rank + 1 is complete here
        +    for k in range(max(1, world - 1)):
        @@
        -    for k in range(world - 1):  # what arrives is complete: it replaces
        +    for k in range(max(1, world - 1)):
    """),
    WrongAnswer(
        "returns_a_copy", "works on a copy and returns it",
        check="every_rank_holds_the_sum", says="rank 0 returned the sum, but the tensor it was given holds", edit="""
        -    chunks = tensor.view(-1).tensor_split(world)  # views; some are empty if there are fewer elements than ranks
        +    result = tensor.clone()
        +    chunks = result.view(-1).tensor_split(world)
        @@
                 dist.recv(chunks[(rank - k) % world], left)
                 sending.wait()
        +    return result
    """),
    WrongAnswer(
        "through_rank_0", "all ranks send to rank 0, which adds and sends back",
        check="only_neighbours", says="rank 0 received from rank 2; its neighbours are 3 and 1", text="""
        import torch
        import torch.distributed as dist


        def ring_all_reduce(tensor):
            rank, world = dist.get_rank(), dist.get_world_size()
            if rank > 0:
                dist.send(tensor, 0)
                dist.recv(tensor, 0)
                return
            received = torch.empty_like(tensor)
            for source in range(1, world):
                dist.recv(received, source)
                tensor += received
            for target in range(1, world):
                dist.send(tensor, target)
    """),
    WrongAnswer(
        "sends_the_whole_tensor", "passes whole tensors round the ring",
        check="the_bytes_of_a_ring",
        says="rank 0 sent 720 kB; a ring sends 2(N-1)/N of the 240 kB tensor = 360 kB", text="""
        import torch
        import torch.distributed as dist


        def ring_all_reduce(tensor):
            rank, world = dist.get_rank(), dist.get_world_size()
            passing, received = tensor.clone(), torch.empty_like(tensor)
            for _ in range(world - 1):
                sending = dist.isend(passing, (rank + 1) % world)
                dist.recv(received, (rank - 1) % world)
                sending.wait()
                tensor += received
                passing, received = received, passing
    """),
    WrongAnswer(
        "adds_before_it_has_come", "adds what irecv receives without waiting for it",
        check="every_rank_holds_the_sum", says="elements are wrong", look="it only starts recv, and rank 0 never calls wait()",
        edit="""
        -        dist.recv(received, left)
        +        dist.irecv(received, left)
    """),
    WrongAnswer(
        "reuses_what_it_sends", "does not wait for the sends of the first half, and changes a chunk that is being sent",
        check="changes what it sends", says="rank 0 changed a tensor before it had waited for the send of it",
        look="what isend returns", edit="""
        -        sending = dist.isend(chunks[(rank - k) % world], right)
        +        dist.isend(chunks[(rank - k) % world], right)
                 dist.recv(received, left)
        -        sending.wait()
    """),
    RightAnswer(
        "batched_and_padded", "batch_isend_irecv over padded chunks, the other way round",
        text="""
        import torch
        import torch.distributed as dist


        def exchange(out, into, target, source):
            operations = [dist.P2POp(dist.isend, out, target), dist.P2POp(dist.irecv, into, source)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()


        def ring_all_reduce(tensor):
            rank, world = dist.get_rank(), dist.get_world_size()
            if world == 1:
                return
            size = -(-tensor.numel() // world)
            chunks = tensor.new_zeros(world, size)
            chunks.view(-1)[: tensor.numel()] = tensor.view(-1)
            left, right = (rank - 1) % world, (rank + 1) % world
            for k in range(world - 1):
                received = torch.empty_like(chunks[0])
                exchange(chunks[(rank + k) % world], received, left, right)
                chunks[(rank + k + 1) % world] += received
            for k in range(world - 1):
                received = torch.empty_like(chunks[0])
                exchange(chunks[(rank + k - 1) % world], received, left, right)
                chunks[(rank + k) % world] = received
            tensor.view(-1).copy_(chunks.view(-1)[: tensor.numel()])
    """),
    RightAnswer(
        "blocking_odd_and_even", "blocking send and recv: rank 0 receives first, all other ranks send first",
        text="""
        import torch
        import torch.distributed as dist


        def pass_on(out, into, rank, left, right):
            if rank == 0:
                dist.recv(into, left)
                dist.send(out, right)
            else:
                dist.send(out, right)
                dist.recv(into, left)


        def ring_all_reduce(tensor):
            rank, world = dist.get_rank(), dist.get_world_size()
            left, right = (rank - 1) % world, (rank + 1) % world
            flat = tensor.view(-1)
            edges = [i * flat.numel() // world for i in range(world + 1)]
            chunks = [flat[a:b] for a, b in zip(edges, edges[1:], strict=False)]
            for k in range(2 * (world - 1)):
                out, into = chunks[(rank - k) % world], chunks[(rank - k - 1) % world]
                received = torch.empty_like(into)
                pass_on(out, received, rank, left, right)
                if k < world - 1:
                    into += received
                else:
                    into.copy_(received)
    """),
    RightAnswer(
        "posts_receives_first", "starts each receive before the send, and in the first half waits for the receive first",
        edit="""
        -        sending = dist.isend(chunks[(rank - k) % world], right)
        -        dist.recv(received, left)
        -        sending.wait()
        -        chunk += received
        +        receiving, sending = dist.irecv(received, left), dist.isend(chunks[(rank - k) % world], right)
        +        receiving.wait()
        +        chunk += received
        +        sending.wait()
        @@
        -        sending = dist.isend(chunks[(rank + 1 - k) % world], right)
        -        dist.recv(chunks[(rank - k) % world], left)
        +        receiving = dist.irecv(chunks[(rank - k) % world], left)
        +        sending = dist.isend(chunks[(rank + 1 - k) % world], right)
                 sending.wait()
        +        receiving.wait()
    """),
)
