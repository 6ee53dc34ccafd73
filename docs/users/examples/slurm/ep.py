"""A kernel in the manner of EP of the NAS parallel benchmarks: pairs of Gaussian deviates, and how many are in each ring."""

import math
from array import array

from mpi4py import MPI

PAIRS = 1 << 15
A, M = 5**13, 1 << 46

world = MPI.COMM_WORLD
size, rank = world.Get_size(), world.Get_rank()


def deviates():
    """Those of this process: each takes its part of one sequence of random numbers."""
    first, last = PAIRS * rank // size, PAIRS * (rank + 1) // size
    seed = 271828183 * pow(A, 2 * first, M) % M
    for _ in range(first, last):
        seed = seed * A % M
        x = 2 * seed / M - 1
        seed = seed * A % M
        y = 2 * seed / M - 1
        t = x * x + y * y
        if 0 < t <= 1:
            factor = math.sqrt(-2 * math.log(t) / t)
            yield x * factor, y * factor


rings, count = array("q", bytes(8 * 10)), 0
for x, y in deviates():
    rings[int(max(abs(x), abs(y)))] += 1
    count += 1
total = array("q", bytes(8 * 10))
world.Allreduce(rings, total)

# Every process sends its numbers to every other one, and gets theirs.
block = 1 << 16
mine, theirs = array("q", [rank]) * (block * size), array("q", bytes(8 * block * size))
world.Alltoall(mine, theirs)
for other in range(size):
    assert theirs[other * block] == theirs[(other + 1) * block - 1] == other

if rank == 0:
    print(f"processes: {size}")
    print("sum:", sum(total), "rings:", *total)
