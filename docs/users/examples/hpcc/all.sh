# HPCC compares its results itself, and ends with status 0 whatever it finds: its file has to be read.
sent() { cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data; } # in words of four bytes

if [ "$LAB_NODE" = n1 ]; then
    cp hpccinf.txt /tmp
    cd /tmp || exit 1
    words=$(sent)
    mpirun --mca pml ucx -wdir /tmp -H "$(echo "$LAB_NODES" | tr ' ' ,)" hpcc || exit 1
    cat hpccoutf.txt
    echo "$((4 * ($(sent) - words) / 1000000)) MB over InfiniBand"

    wrong='FAILED|^ *[1-9][0-9]* tests .*(failed|skipped)|^Node\(s\) with error [^0]|_Errors=[^0]|^Error|Solution .*fail'
    if grep -E "$wrong" hpccoutf.txt || ! grep -x 'Success=1' hpccoutf.txt; then
        echo "HPCC's results are wrong"
        exit 1
    fi
fi
lab-barrier done
