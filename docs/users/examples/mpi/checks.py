"""MPI's messages, collectives and one-sided operations over all processes; every element is checked."""

import sys
import time
from array import array

if "mpich" in sys.argv:
    import mpich as MPI
else:
    from mpi4py import MPI

world = MPI.COMM_WORLD
size, rank = world.Get_size(), world.Get_rank()
left, right = (rank - 1) % size, (rank + 1) % size
ranks = sum(range(size))


def ramp(first, length, step=1):
    """Numbers from `first` on. A sum of ramps is a ramp."""
    return array("q", range(first, first + length * step, step))


def empty(length):
    return array("q", bytes(8 * length))


def check(what, found, expected):
    if found != expected:
        wrong = [i for i in range(len(expected)) if found[i] != expected[i]]
        at = wrong[0]
        print(f"rank {rank}: {what} of {len(expected)}: {len(wrong)} elements are wrong, the first "
              f"is {at}: {found[at]}, not {expected[at]}", flush=True)
        world.Abort(1)


def reductions(length):
    mine, found = ramp(rank, length), empty(length)
    for operation, expected in (
        (MPI.SUM, ramp(ranks, length, size)),
        (MPI.MIN, ramp(0, length)),
        (MPI.MAX, ramp(size - 1, length)),
    ):
        world.Allreduce(mine, found, operation)
        check("Allreduce", found, expected)

    for root in range(size):
        found = empty(length)
        world.Reduce(mine, found, root=root)
        check("Reduce", found, ramp(ranks, length, size) if rank == root else empty(length))

    world.Scan(mine, found)
    check("Scan", found, ramp(sum(range(rank + 1)), length, rank + 1))

    # Two at once, and a third operation meanwhile.
    sums, most = empty(length), empty(length)
    requests = [world.Iallreduce(mine, sums), world.Iallreduce(mine, most, MPI.MAX)]
    world.Barrier()
    for request in requests:
        request.Wait()
    check("Iallreduce", sums, ramp(ranks, length, size))
    check("Iallreduce", most, ramp(size - 1, length))

    # Each gets a part of the sum, and the parts have different lengths.
    parts = [length + each for each in range(size)]
    found = empty(parts[rank])
    world.Reduce_scatter(ramp(rank, sum(parts)), found, parts)
    check("Reduce_scatter", found, ramp(ranks + size * sum(parts[:rank]), parts[rank], size))


def exchanges(length):
    mine, found, all_found = ramp(rank * length, length), empty(length), empty(size * length)
    world.Sendrecv(mine, dest=right, recvbuf=found, source=left)
    check("Sendrecv", found, ramp(left * length, length))

    world.Allgather(mine, all_found)
    check("Allgather", all_found, ramp(0, size * length))

    for root in range(size):
        found = ramp(root, length) if rank == root else empty(length)
        world.Bcast(found, root=root)
        check("Bcast", found, ramp(root, length))

        all_found = empty(size * length)
        world.Gather(mine, all_found, root=root)
        check("Gather", all_found, ramp(0, size * length) if rank == root else empty(size * length))

        world.Scatter(ramp(root, size * length), found, root=root)
        check("Scatter", found, ramp(root + rank * length, length))

    # Process a sends b the a * size + b th block.
    def block(a, b, length):
        return ramp((a * size + b) * length, length)

    world.Alltoall(ramp(rank * size * length, size * length), all_found)
    check("Alltoall", all_found, sum((block(each, rank, length) for each in range(size)), array("q")))

    # Of different lengths, and one of none.
    def part(a, b):
        return block(a, b, (a + b) % size * length // size)

    to, come = [part(rank, each) for each in range(size)], [part(each, rank) for each in range(size)]
    found = empty(sum(map(len, come)))
    world.Alltoallv(
        (sum(to, array("q")), [len(it) for it in to]), (found, [len(it) for it in come]))
    check("Alltoallv", found, sum(come, array("q")))


def one_sided(length):
    # What others write to, and what they read.
    memory, source = empty(length + 2), ramp(rank, length)
    mutable, readable = MPI.Win.Create(memory, 8, comm=world), MPI.Win.Create(source, 8, comm=world)
    sums, counter, lock = 0, length, length + 1

    found = empty(length)
    mutable.Fence()
    readable.Fence()
    mutable.Put(source, right)
    readable.Get(found, left)
    readable.Fence()
    mutable.Fence()
    check("Put, fence", memory[:length], ramp(left, length))
    check("Get, fence", found, ramp(left, length))

    # Post, start, complete and wait: the other way around.
    group = world.Get_group()
    mutable.Post(group.Incl([right]))
    mutable.Start(group.Incl([left]))
    mutable.Put(source, left)
    mutable.Complete()
    mutable.Wait()
    check("Put, post", memory[:length], ramp(right, length))

    # All add to the sums of all.
    memory[:length] = empty(length)
    world.Barrier()
    mutable.Lock_all()
    for target in range(size):
        mutable.Accumulate(source, target, sums, op=MPI.SUM)
        mutable.Flush(target)
    world.Barrier()
    mutable.Get_accumulate(source, found, right, sums, op=MPI.NO_OP)
    mutable.Flush(right)
    check("Get_accumulate, no operation", found, ramp(ranks, length, size))
    world.Barrier()
    mutable.Get_accumulate(source, found, right, sums, op=MPI.REPLACE)
    mutable.Flush(right)
    check("Get_accumulate, replace", found, ramp(ranks, length, size))
    world.Barrier()
    mutable.Get_accumulate(source, found, rank, sums, op=MPI.NO_OP)
    mutable.Flush(rank)
    check("Accumulate and replace", found, ramp(left, length))

    # Numbers that the first process gives out: nobody gets one twice.
    one, number, none, rounds = array("q", [1]), empty(1), empty(1), 10
    numbers = empty(0)
    for _ in range(rounds):
        mutable.Fetch_and_op(one, number, 0, counter, MPI.SUM)
        mutable.Flush(0)
        numbers.append(number[0])
    all_numbers = empty(size * rounds)
    world.Allgather(numbers, all_numbers)
    check("Fetch_and_op", array("q", sorted(all_numbers)), ramp(0, size * rounds))

    # A lock by which all change a number in turn, by reading and writing.
    for _ in range(rounds):
        while True:
            mutable.Compare_and_swap(one, none, number, 0, lock)
            mutable.Flush(0)
            if number[0] == 0:
                break
            # Who holds it has to get through, too.
            time.sleep(0.01)
        mutable.Get(number, 0, counter)
        mutable.Flush(0)
        number[0] += 1
        mutable.Put(number, 0, counter)
        mutable.Flush(0)
        mutable.Fetch_and_op(none, number, 0, lock, MPI.REPLACE)
        mutable.Flush(0)
    mutable.Unlock_all()

    # The same by the lock that windows have.
    world.Barrier()
    for _ in range(rounds):
        mutable.Lock(0, MPI.LOCK_EXCLUSIVE)
        mutable.Get(number, 0, counter)
        mutable.Flush(0)
        number[0] += 1
        mutable.Put(number, 0, counter)
        mutable.Unlock(0)
    world.Barrier()
    mutable.Lock(0, MPI.LOCK_SHARED)
    mutable.Get(number, 0, counter)
    mutable.Unlock(0)
    check("Compare_and_swap, lock", number, ramp(3 * size * rounds, 1))

    mutable.Free()
    readable.Free()


def four_bytes(length):
    # Numbers of four bytes, each of which has to come from its own bytes, and in their order.
    first = 0x01020304
    memory = array("i", [first, 0])
    window = MPI.Win.Create(memory, 4, comm=world)
    one, zero, number = array("i", [1]), array("i", [0]), array("i", [0])
    numbers = empty(0)
    window.Lock_all()
    for _ in range(min(length, 20)):
        window.Fetch_and_op(one, number, 0, 0, MPI.SUM)
        window.Flush(0)
        numbers.append(number[0])
    found = empty(size * len(numbers))
    world.Allgather(numbers, found)
    check("Fetch_and_op, four bytes", array("q", sorted(found)), ramp(first, len(found)))

    # One of all is the first to change a zero, and the others find what it has written.
    window.Compare_and_swap(array("i", [-first - rank]), zero, number, 0, 1)
    window.Flush(0)
    found = empty(size)
    world.Allgather(array("q", number), found)
    winner = -first - found.index(0)
    check("Compare_and_swap, four bytes", array("q", sorted(found)),
          array("q", [winner] * (size - 1) + [0]))
    window.Unlock_all()
    window.Free()


checks = [reductions, exchanges, one_sided]
if "mpich" not in sys.argv:
    checks.append(four_bytes)
for what in checks:
    # What goes in a packet, by copy, and by rendezvous.
    for length in 1, 1000, 100_000:
        what(length)
    world.Barrier()
    if rank == 0:
        print(f"{what.__name__} are right", flush=True)

print(f"rank {rank} of {size} in {MPI.Get_processor_name()}: all elements are right", flush=True)
