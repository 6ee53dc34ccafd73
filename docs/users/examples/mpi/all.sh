# n1 starts a process in every node, by each MPI that Debian has.
port() { cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data; } # in words of four bytes
ipoib() { cat /sys/class/net/ib0/statistics/tx_bytes; }

# Runs a command, which has to send by verbs, or by IPoIB. The largest sum alone has 800 000 bytes.
by() {
    way=$1
    shift
    words=$(port) bytes=$(ipoib)
    "$@" || exit 1
    by_ipoib=$(($(ipoib) - bytes))
    by_verbs=$((4 * ($(port) - words) - by_ipoib))
    echo "$1: $by_verbs bytes by verbs, $by_ipoib bytes by IPoIB"
    [ $((by_$way)) -gt 800000 ] || { echo "it did not go by $way"; exit 1; }
}

if [ "$LAB_NODE" = n1 ]; then
    hosts=$(echo "$LAB_NODES" | tr ' ' ,)
    # MPICH is built for UCX, which finds the HCA.
    by verbs mpiexec.mpich -hosts "$hosts" python3 checks.py mpich
    # Open MPI has UCX, and Debian tells it not to take it (/etc/openmpi/openmpi-mca-params.conf): it takes TCP.
    by ipoib mpirun -H "$hosts" python3 checks.py
    # So it takes UCX, and for windows, too. The HCA does what changes single values.
    by verbs mpirun --mca pml ucx --mca osc ucx --mca osc_ucx_acc_single_intrinsic 1 -H "$hosts" python3 checks.py
fi
lab-barrier done
