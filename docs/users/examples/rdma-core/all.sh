# Debian keeps the tests among the documentation, and compresses them.
set -e
cp -r /usr/share/doc/rdma-core/tests /root/tests
find /root/tests -name '*.gz' -exec gunzip '{}' ';'
cd /root
# All tests, or those that are named: `TESTS='tests.test_cq tests.test_qp'`.
python3 tests/run_tests.py -v --dev mlx5_0 $TESTS
