"""Runs rdma-core's own tests of tags and of signatures on memory that is on demand, and that nobody has touched yet.

The tests register memory that is there. Here it is registered before anybody has written to it, so that the HCA meets
pages that are away; each test fails whose regions have had no page fault.

    cd TESTS && python3 on_demand.py ARGUMENTS...

ARGUMENTS are for run_tests.py.
"""

import ctypes
import gc
import mmap
import os
import re
import runpy
import subprocess
import sys
from importlib.machinery import SourceFileLoader

import pyverbs.enums as e
from pyverbs.mr import MR

# The package has its name by run_tests.py, whatever its folder is called.
sys.path.insert(0, os.getcwd())
SourceFileLoader("tests", os.path.abspath("__init__.py")).load_module()

import tests.base
import tests.test_mlx5_mkey
import tests.test_tag_matching

ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_ON_DEMAND
)

# A mapping lasts as long as the test, whatever becomes of its region.
mappings = []


def create_mr(self):
    memory = mmap.mmap(-1, max(self.msg_size, mmap.PAGESIZE))
    mappings.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    self.mr = MR(self.pd, self.msg_size, ACCESS, address=address)


tests.test_tag_matching.TMResources.create_mr = create_mr
tests.test_mlx5_mkey.Mlx5MkeyResources.create_mr = create_mr
tear_down = tests.base.RDMATestCase.tearDown


def check_and_tear_down(self):
    show = subprocess.run(["rdma", "statistic", "show", "mr"], capture_output=True, text=True)
    faults = [int(count) for count in re.findall(r"page_faults (\d+)", show.stdout)]
    tear_down(self)
    assert faults and all(faults), show


tests.base.RDMATestCase.tearDown = check_and_tear_down
gc.disable()
runpy.run_path(os.path.abspath("run_tests.py"), run_name="__main__")
