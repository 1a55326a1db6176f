# Rank 0 downloads for 14 s, a few bytes at a time, while rank 1 waits in a barrier.
import multiprocessing
import os
import socket
import threading
import time

import torch.distributed as dist


def dribble(server):
    connection, _ = server.accept()
    for _ in range(20):
        time.sleep(0.7)
        connection.sendall(b"bytes")
    connection.close()


def serve(port):
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=dribble, args=(server,))
    thread.start()
    port.send(server.getsockname()[1])
    thread.join()


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("fork").Process(target=serve, args=(sender,))
    server.start()
    with socket.create_connection(("127.0.0.1", receiver.recv())) as connection:
        downloaded = 0
        while chunk := connection.recv(1 << 16):
            downloaded += len(chunk)
    server.join()
    assert downloaded == 100, os.getpid()
dist.barrier()
dist.destroy_process_group()
