//! Benchmarks of ibvswitch and its comparison with peers.
