"""Sums over all processes, of messages that go inline, by copy and by rendezvous; every element is checked."""

from array import array

from mpi4py import MPI

world = MPI.COMM_WORLD
size, rank = world.Get_size(), world.Get_rank()

for length in (1, 1000, 100_000):
    mine = array("q", (rank + i for i in range(length)))
    sums = array("q", bytes(8 * length))
    world.Allreduce(mine, sums)
    ranks = size * (size - 1) // 2
    assert sums == array("q", (size * i + ranks for i in range(length))), (rank, length)

    # Around the ring: what comes is the neighbour's.
    right, left = (rank + 1) % size, (rank - 1) % size
    world.Sendrecv(mine, dest=right, recvbuf=sums, source=left)
    assert sums == array("q", (left + i for i in range(length))), (rank, length)

print(f"rank {rank} of {size} in {MPI.Get_processor_name()}: all sums are right", flush=True)
