"""Rounds of work and a sum over all processes (MPI_Allreduce): a round ends when the slowest process has done its work."""

import time
from array import array

from mpi4py import MPI

ROUNDS, UNITS = 200, 4000

world = MPI.COMM_WORLD
own, total = array("d", [1.0]), array("d", [0.0])
while True:
    # Until then the process sleeps.
    with open("/root/go") as go:
        number = go.readline().strip()
    world.Barrier()
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        work = 0
        for unit in range(UNITS):
            work += unit * unit
        world.Allreduce(own, total)
        assert total[0] == world.size
    taken = time.perf_counter() - begin
    if world.rank == 0:
        with open("/root/time", "w") as answer:
            print(number, taken / ROUNDS * 1e6, file=answer)
