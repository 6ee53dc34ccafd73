"""Runs rdma-core's tests as they are, with the resources of each test at two devices in turn.

Client and server of a test are so at two VFs, where the tests alone would have both at one.
Usage: two.py RUN_TESTS DEVICE DEVICE ARGUMENTS...
"""

import gc
import itertools
import runpy
import sys
import unittest

# What a test leaves behind is else collected amid another, which may take the error of that for its own.
gc.disable()

runs, *devices = sys.argv[1:4]
sys.argv[:4] = [runs]
main = unittest.main


def begin(module):
    """Takes the place of unittest.main, when the tests are loaded."""
    from tests.base import BaseResources

    make = BaseResources.__init__
    turns = itertools.cycle(devices)

    def at_next(self, dev_name, *arguments, **named):
        make(self, next(turns), *arguments, **named)

    BaseResources.__init__ = at_next
    main(module=module)


unittest.main = begin
runpy.run_path(runs, run_name="__main__")
