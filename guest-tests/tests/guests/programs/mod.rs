//! Other people's programs on the device.

mod ipoib;
mod perftest;
mod rdma_core;
mod rds;
mod storage;
mod thirty_two_bits;
mod tools;
mod ucx;
