# The smallest folder for `lab run`: copy it to tests/infiniband. Each node runs this file; n1 waits for n2's messages. Put
# your program in place of ibv_rc_pingpong, which compares each byte (-c). The job fails where a node's status is not 0.
set -e
if [ $LAB_NODE = n1 ]; then
    ibv_rc_pingpong -c & await-port 18515 $!
    lab-barrier listening
    wait $!
else
    lab-barrier listening
    ibv_rc_pingpong -c $LAB_PEER
fi
