# What a kernel is tried with that somebody has built:
#     make modules_install INSTALL_MOD_PATH=/tmp/modules
#     ibvswitch lab run --kernel arch/x86/boot/bzImage --modules /tmp/modules docs/users/examples/kernel
set -e
echo "kernel $(uname -r)"
ibv_devinfo -d mlx5_0 | grep -w state
if [ "$LAB_RANK" = 0 ]; then
    ibv_rc_pingpong -c &
    await-port 18515 $!
    lab-barrier listening
    wait $!
else
    lab-barrier listening
    [ "$LAB_RANK" != 1 ] || ibv_rc_pingpong -c "${LAB_NODES%% *}"
fi
if dmesg | grep -E 'WARNING:|BUG:|Oops|KASAN|lockdep'; then
    exit 1
fi
