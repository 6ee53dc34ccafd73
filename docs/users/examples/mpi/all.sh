# n1 starts a process in every node. They are to use UCX and nothing else.
sent() { cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data; }

if [ "$LAB_NODE" = n1 ]; then
    before=$(sent)
    mpirun --mca pml ucx -H "$(echo "$LAB_NODES" | tr ' ' ,)" python3 sums.py || exit 1
    # PortXmitData counts in words of four bytes; the largest sum alone has 800 000 bytes.
    [ $(($(sent) - before)) -gt 200000 ] || { echo "it did not go over InfiniBand"; exit 1; }
fi
lab-barrier done
