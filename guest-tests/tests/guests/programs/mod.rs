//! Other people's programs on the device.

mod ipoib;
mod perftest;
mod rdma_core;
mod rds;
mod storage;
mod tools;
mod ucx;
