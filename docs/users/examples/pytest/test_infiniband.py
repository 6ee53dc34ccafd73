"""Tests of pytest that use a lab: two VMs with an InfiniBand HCA each, which are left running for all tests of this file.

`ibvswitch` has to be in PATH.
"""

import subprocess
import uuid

import pytest


class Lab:
    def __init__(self, name):
        self.name = name

    def command(self, *words):
        return ["ibvswitch", "lab", *words]

    def run(self, node, command, timeout="60s"):
        """Runs a line of the shell in a node, which has to succeed; what it prints."""
        words = ["exec", "--name", self.name, "--timeout", timeout, node, "--", command]
        done = subprocess.run(self.command(*words), stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"{node}: {command}\n{done.stdout}"
        return done.stdout

    def start(self, node, command):
        """Starts one and leaves it running."""
        words = ["exec", "--name", self.name, node, "--", command]
        return subprocess.Popen(self.command(*words), stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def lab():
    lab = Lab(f"pytest-{uuid.uuid4().hex[:8]}")
    up = lab.command("up", "--name", lab.name, "--nodes", "2", "--control")
    subprocess.run(up, check=True)
    yield lab
    subprocess.run(lab.command("down", "--name", lab.name), check=True)


def test_port_is_active(lab):
    for node in ("n1", "n2"):
        assert "PORT_ACTIVE" in lab.run(node, "ibv_devinfo")


def test_payload_arrives(lab):
    server = lab.start("n1", "ibv_rc_pingpong -c & await-port 18515 $! && echo listens; wait $!")
    assert any("listens" in line for line in server.stdout)
    assert "invalid data" not in lab.run("n2", "ibv_rc_pingpong -c n1")
    assert server.wait() == 0


def test_cable_is_pulled(lab):
    state = "/sys/class/infiniband/mlx5_0/ports/1/state"
    lab.run("n1", f"ibvswitch link down n2:1; ssh n2 'until grep DOWN {state}; do sleep 0.1; done'")
    lab.run("n1", f"ibvswitch link up n2:1; ssh n2 'until grep ACTIVE {state}; do sleep 0.1; done'")
