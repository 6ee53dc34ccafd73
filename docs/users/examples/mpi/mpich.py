"""MPICH by the names of mpi4py: as much as checks.py takes. mpi4py of Debian is built for Open MPI.

Arrays have numbers of eight bytes. What MPICH calls a number here is what its ABI calls so; errors end the job."""

import atexit
from ctypes import CDLL, byref, c_int, c_ssize_t, c_void_p, create_string_buffer

SUM, MIN, MAX, REPLACE, NO_OP = 0x58000003, 0x58000002, 0x58000001, 0x5800000D, 0x5800000E
LOCK_EXCLUSIVE, LOCK_SHARED = 234, 235
_WORLD, _INT64, _NO_INFO, _NO_STATUS = 0x44000000, 0x4C00083A, 0x1C000000, c_void_p(1)

_library = CDLL("libmpich.so.12")


def _call(name, *arguments):
    getattr(_library, f"MPI_{name}")(*arguments)


def _number(name, *arguments):
    found = c_int()
    _call(name, *arguments, byref(found))
    return found


def _at(buffer):
    return c_void_p(buffer.buffer_info()[0])


def _all(buffer):
    return _at(buffer), len(buffer), _INT64


def _parts(buffer, counts):
    starts = [sum(counts[:at]) for at in range(len(counts))]
    return _at(buffer), _ints(counts), _ints(starts), _INT64


def _ints(numbers):
    return (c_int * len(numbers))(*numbers)


class _World:
    def Get_size(self):
        return _number("Comm_size", _WORLD).value

    def Get_rank(self):
        return _number("Comm_rank", _WORLD).value

    def Get_group(self):
        return _Group(_number("Comm_group", _WORLD))

    def Abort(self, status):
        _call("Abort", _WORLD, status)

    def Barrier(self):
        _call("Barrier", _WORLD)

    def Sendrecv(self, mine, dest, recvbuf, source):
        _call("Sendrecv", *_all(mine), dest, 0, *_all(recvbuf), source, 0, _WORLD, _NO_STATUS)

    def Bcast(self, buffer, root):
        _call("Bcast", *_all(buffer), root, _WORLD)

    def Gather(self, mine, found, root):
        _call("Gather", *_all(mine), _at(found), len(mine), _INT64, root, _WORLD)

    def Scatter(self, mine, found, root):
        _call("Scatter", _at(mine), len(found), _INT64, *_all(found), root, _WORLD)

    def Allgather(self, mine, found):
        _call("Allgather", *_all(mine), _at(found), len(mine), _INT64, _WORLD)

    def Alltoall(self, mine, found):
        part = len(mine) // self.Get_size()
        _call("Alltoall", _at(mine), part, _INT64, _at(found), part, _INT64, _WORLD)

    def Alltoallv(self, mine, found):
        _call("Alltoallv", *_parts(*mine), *_parts(*found), _WORLD)

    def Reduce(self, mine, found, root):
        _call("Reduce", _at(mine), _at(found), len(mine), _INT64, SUM, root, _WORLD)

    def Allreduce(self, mine, found, op=SUM):
        _call("Allreduce", _at(mine), _at(found), len(mine), _INT64, op, _WORLD)

    def Iallreduce(self, mine, found, op=SUM):
        return _Request(
            _number("Iallreduce", _at(mine), _at(found), len(mine), _INT64, op, _WORLD))

    def Scan(self, mine, found):
        _call("Scan", _at(mine), _at(found), len(mine), _INT64, SUM, _WORLD)

    def Reduce_scatter(self, mine, found, parts):
        _call("Reduce_scatter", _at(mine), _at(found), _ints(parts), _INT64, SUM, _WORLD)


class _Request:
    def __init__(self, handle):
        self.handle = handle

    def Wait(self):
        _call("Wait", byref(self.handle), _NO_STATUS)


class _Group:
    def __init__(self, handle):
        self.handle = handle

    def Incl(self, ranks):
        return _Group(_number("Group_incl", self.handle, len(ranks), _ints(ranks)))


class Win:
    @classmethod
    def Create(cls, memory, unit, comm):
        win = cls()
        size = c_ssize_t(unit * len(memory))
        win.handle = _number("Win_create", _at(memory), size, unit, _NO_INFO, _WORLD)
        return win

    def Free(self):
        _call("Win_free", byref(self.handle))

    def Fence(self):
        _call("Win_fence", 0, self.handle)

    def Post(self, group):
        _call("Win_post", group.handle, 0, self.handle)

    def Start(self, group):
        _call("Win_start", group.handle, 0, self.handle)

    def Complete(self):
        _call("Win_complete", self.handle)

    def Wait(self):
        _call("Win_wait", self.handle)

    def Lock(self, target, kind):
        _call("Win_lock", kind, target, 0, self.handle)

    def Unlock(self, target):
        _call("Win_unlock", target, self.handle)

    def Lock_all(self):
        _call("Win_lock_all", 0, self.handle)

    def Unlock_all(self):
        _call("Win_unlock_all", self.handle)

    def Flush(self, target):
        _call("Win_flush", target, self.handle)

    def Put(self, mine, target, at=0):
        _call("Put", *_all(mine), *self._there(mine, target, at), self.handle)

    def Get(self, found, target, at=0):
        _call("Get", *_all(found), *self._there(found, target, at), self.handle)

    def Accumulate(self, mine, target, at, op):
        _call("Accumulate", *_all(mine), *self._there(mine, target, at), op, self.handle)

    def Get_accumulate(self, mine, found, target, at, op):
        there = self._there(mine, target, at)
        _call("Get_accumulate", *_all(mine), *_all(found), *there, op, self.handle)

    def Fetch_and_op(self, mine, found, target, at, op):
        _call("Fetch_and_op", _at(mine), _at(found), _INT64, target, c_ssize_t(at), op, self.handle)

    def Compare_and_swap(self, mine, compared, found, target, at):
        buffers = _at(mine), _at(compared), _at(found)
        _call("Compare_and_swap", *buffers, _INT64, target, c_ssize_t(at), self.handle)

    def _there(self, buffer, target, at):
        return target, c_ssize_t(at), len(buffer), _INT64


def Get_processor_name():
    name, length = create_string_buffer(128), c_int()
    _call("Get_processor_name", name, byref(length))
    return name.value.decode()


_call("Init", None, None)
atexit.register(_call, "Finalize")
COMM_WORLD = _World()
