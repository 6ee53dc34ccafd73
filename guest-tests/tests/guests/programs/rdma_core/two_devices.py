"""Runs rdma-core's own tests, as they are, with client and server on two devices.

The tests make both ends on one device: what they address is their own port. Here the second end that a test makes is
on another device, and what names an end's own port leads to the other end's. Of the connection manager's tests the
passive side, a process of its own, is in the network namespace of the other device's IPoIB interface: two addresses
of one namespace would talk to each other without any device.

    cd TESTS && python3 two_devices.py DEVICE ADDRESS NAMESPACE ARGUMENTS...

DEVICE is the other device, ADDRESS that of its IPoIB interface, in NAMESPACE, ARGUMENTS are for run_tests.py. At the
end those tests are named that exchange data, or may, and have passed on one device.
"""

import functools
import gc
import os
import runpy
import sys
import unittest

import pyverbs.addr
import pyverbs.cmid
import pyverbs.device

_, OTHER_DEVICE, OTHER_ADDRESS, OTHER_NAMESPACE, *ARGUMENTS = sys.argv

PORT = 1
ZERO_GID = "0000:0000:0000:0000"

# The address of the other end for that of each: LIDs and GIDs while a test has ends on two devices, an IP address
# in the process of the active side.
others = {}


class Addresses(pyverbs.addr.AHAttr):
    """The address of a port, which is the other end's where a test gives an end's own."""

    def __init__(self, dlid=0, **settings):
        super().__init__(dlid=others.get(dlid, dlid), **settings)


class Route(pyverbs.addr.GlobalRoute):
    """The same for the global part."""

    def __init__(self, dgid=None, **settings):
        if dgid is not None:
            dgid = others.get(dgid.gid, dgid)
        super().__init__(dgid=dgid, **settings)


class Name(pyverbs.cmid.AddrInfo):
    """The same for IP addresses."""

    def __init__(self, dst=None, **settings):
        super().__init__(dst=others.get(dst, dst), **settings)


REPLACED = {
    pyverbs.addr.AHAttr: Addresses,
    pyverbs.addr.GlobalRoute: Route,
    pyverbs.cmid.AddrInfo: Name,
}


@functools.cache
def end(device):
    """Where a player on `device` is, as the tests say it, and its LID and GID."""
    with pyverbs.device.Context(name=device) as context:
        port = context.query_port(PORT)
        gids = [context.query_gid(PORT, index) for index in range(port.gid_tbl_len)]
        index = next(index for index, gid in enumerate(gids) if not gid.gid.endswith(ZERO_GID))
        where = {"dev_name": device, "ib_port": PORT, "gid_index": index}
        return where, port.lid, gids[index]


def apart(create_players):
    """`create_players` of a class of tests, with the second player on the other device."""

    @functools.wraps(create_players)
    def create(test, resource, *arguments, **settings):
        ends = [end(test.dev_name), end(OTHER_DEVICE)]
        for (_, lid, gid), (_, other_lid, other_gid) in (ends, reversed(ends)):
            others[lid] = other_lid
            others[gid.gid] = other_gid
        free = iter(ends)

        @functools.wraps(resource, updated=())
        def player(dev_name, ib_port, gid_index, **settings):
            where, _, _ = next(free)
            return resource(**where, **settings)

        create_players(test, player, *arguments, **settings)
        test.is_apart = True

    return create


def processes_apart(two_nodes):
    """`two_nodes_rdmacm_traffic`, with the passive side in the other device's namespace."""

    @functools.wraps(two_nodes)
    def run(test, resources, flow, *arguments, **settings):
        # It is called in a process of its own for each side.
        def side(passive, **settings):
            if passive:
                with open(f"/run/netns/{OTHER_NAMESPACE}") as namespace:
                    os.setns(namespace.fileno(), os.CLONE_NEWNET)
                test.ip_addr = OTHER_ADDRESS
            else:
                others[test.ip_addr] = OTHER_ADDRESS
            flow(passive=passive, **settings)

        test.is_apart = True
        two_nodes(test, resources, side, *arguments, **settings)

    return run


class Result(unittest.TextTestResult):
    """What is printed of each test, and which of them were on one device."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.on_one = []

    def startTest(self, test):
        others.clear()
        super().startTest(test)

    def addSuccess(self, test):
        from tests.base import RDMATestCase

        super().addSuccess(test)
        if isinstance(test, RDMATestCase) and not hasattr(test, "is_apart"):
            self.on_one.append(test)

    def stopTestRun(self):
        super().stopTestRun()
        for test in self.on_one:
            print("on one device:", test)


def patch():
    """Has the tests, which are loaded, use what is here."""
    from tests import base, mlx5_base, test_tag_matching

    for name, module in list(sys.modules.items()):
        if name.startswith("tests."):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, type) and value in REPLACED:
                    setattr(module, attribute, REPLACED[value])
    for tests in (base.RDMATestCase, mlx5_base.Mlx5DevxTrafficBase, test_tag_matching.TMTest):
        tests.create_players = apart(tests.create_players)
    cm = base.RDMACMBaseTest
    cm.two_nodes_rdmacm_traffic = processes_apart(cm.two_nodes_rdmacm_traffic)


main = unittest.main


def patched_main(**settings):
    patch()
    main(testRunner=unittest.TextTestRunner(resultclass=Result, verbosity=2), **settings)


# What a test leaves behind is else collected amid another, which may take the error of that for its own.
gc.disable()
unittest.main = patched_main
sys.argv = ["run_tests.py", *ARGUMENTS]
sys.path[0] = os.getcwd()
runpy.run_path(os.path.abspath("run_tests.py"), run_name="__main__")
