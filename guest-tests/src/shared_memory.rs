//! Memory that two guests share, without an HCA: the nearest that they get to each other, and so the limit of
//! what any HCA can do for them.
//!
//! The demo's own program runs in both guests and talks over an ivshmem device.

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    guest::{Config, Guest},
    image::Image,
};

pub mod inside;

/// Bytes of the memory.
const MEMORY: usize = 1 << 20;
/// Bytes of a copy.
const COPY: usize = 64 << 10;
/// Line that the answering end prints when it is ready.
const READY: &str = "answering";
/// Round trips that are measured.
const ITERATIONS: u32 = 20_000;
/// The program's place in the guest.
const PROGRAM: &str = "usr/bin/ibvswitch-demo";
const LIMIT: Duration = Duration::from_secs(60);

/// Results of guests with the memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Half the median time from a write of one guest until the write of the other is seen, in µs.
    pub median_us: f64,
    /// The 99th percentile of it in µs.
    pub p99_us: f64,
    /// Copies of 64 KiB by a guest's processor, in 2^20 bytes per second.
    pub mib_per_s: f64,
}

/// The image with the demo's program in it, written to `dir`.
pub fn image(image: &Image, program: &Path, dir: &Path) -> Result<Image> {
    image.with(&[(PROGRAM, program)], &[], dir)
}

/// Gives the guest the memory that is the file at `path`.
pub fn attach(config: &mut Config, path: &Path) {
    let path = path.display();
    config.qemu_arguments.extend([
        "-object".into(),
        format!("memory-backend-file,id=shared,size={MEMORY},share=on,mem-path={path}"),
        "-device".into(),
        "ivshmem-plain,memdev=shared".into(),
    ]);
}

/// Measures between two guests.
pub fn measure([answers, measures]: &[Guest; 2]) -> Result<Figures> {
    let command = format!("/{PROGRAM} shared-memory");
    let mut answering = answers.spawn(&format!("{command} answer"))?;
    answering.await_text(READY, LIMIT)?;
    let said = measures.sh(&format!("{command} measure {ITERATIONS}"), LIMIT)?;
    answering.wait(LIMIT)?;
    serde_json::from_str(&said)
        .map_err(|error| Error::Host(format!("{command} printed no figures ({error}): {said}")))
}
