# Connections, datagrams, and what libfabric makes of either: reliable datagrams with tags (rxm, rxd).
set -e
cd /tmp
for endpoint in 'verbs -e msg' 'verbs -e dgram' 'verbs;ofi_rxm -e rdm' 'verbs;ofi_rxd -e rdm'; do
    if [ "$LAB_NODE" = n1 ]; then
        fi_pingpong -p $endpoint -I 100 -c >served &
        # It listens on port 47592.
        until grep -q :B9E8 /proc/net/tcp; do kill -0 $!; sleep 0.05; done
        lab-barrier listening
        wait $!
    else
        lab-barrier listening
        fi_pingpong -p $endpoint -I 100 -c "$LAB_PEER-ib" >called
        # Bytes of each message, how many were sent, and how many came back as they were.
        awk -v endpoint="$endpoint" 'NR > 1 { print endpoint ":", $1, "bytes,", $2, "sent,", $3 }' called
    fi
done
