# Debian keeps the tests among the documentation, and compresses them.
set -e
cp -r /usr/share/doc/rdma-core/tests /root/tests
find /root/tests -name '*.gz' -exec gunzip '{}' ';'
cd /root/tests
# All tests, or those that are named: `TESTS='tests.test_cq tests.test_qp'`. What a test leaves behind stays until the
# end: collected amid another, it may have that take an error for its own.
run='import gc, runpy; gc.disable(); runpy.run_path("/root/tests/run_tests.py", run_name="__main__")'
python3 -c "$run" -v --dev mlx5_0 $TESTS
