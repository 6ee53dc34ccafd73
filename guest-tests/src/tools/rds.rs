//! The kernel's reliable datagram sockets over RDMA between two guests. The kernels connect to each other by the
//! connection manager, and send again by another connection what was under way when one is lost.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    guest::{Guest, Job, Output},
};

/// Where guests have the program `ibvswitch-rds`, whose source is beside this.
pub const PROGRAM: &str = "usr/bin/ibvswitch-rds";

/// The port of TCP by which the two ends of an exchange know of each other.
const PORT: u16 = 4001;

/// Messages that go both ways between two guests, and are compared.
#[derive(Debug)]
pub struct Exchange<'a> {
    serving: Job<'a>,
    calling: Job<'a>,
}

impl<'a> Exchange<'a> {
    /// Begins to send `messages` of many lengths each way. The addresses are those of IPoIB interfaces.
    pub fn begin(
        [server, client]: [&'a Guest; 2],
        addresses: [&str; 2],
        messages: u64,
        limit: Duration,
    ) -> Result<Self> {
        let [first, second] = addresses;
        // Loaded by name: nobody may have a protocol's module loaded by its number.
        for guest in [server, client] {
            guest.sh("modprobe rds_rdma", limit)?;
        }
        let mut serving = server.spawn(&format!(
            "ibvswitch-rds {first} {second} {messages} --wait {PORT}"
        ))?;
        serving.await_port(&PORT.to_string(), limit)?;
        let calling = client.spawn(&format!(
            "ibvswitch-rds {second} {first} {messages} --call {}:{PORT}",
            server.address()
        ))?;
        Ok(Self { serving, calling })
    }

    /// Waits until each end has got so many messages, which has to be a multiple of a hundred.
    pub fn await_messages(&mut self, number: u64, limit: Duration) -> Result<()> {
        for job in [&mut self.serving, &mut self.calling] {
            job.await_text(&format!("{number} of "), limit)?;
        }
        Ok(())
    }

    /// Returns the number of messages that have arrived at both ends together, in steps of a hundred at each.
    pub fn progress(&mut self) -> Result<u64> {
        let mut sum = 0;
        for job in [&mut self.serving, &mut self.calling] {
            // Output is read when somebody asks whether the command still runs.
            job.running()?;
            let text = job.text();
            let numbers = text.lines().filter_map(|line| line.split_once(" of "));
            sum += numbers
                .filter_map(|it| it.0.parse().ok())
                .max()
                .unwrap_or(0);
        }
        Ok(sum)
    }

    /// Waits until all messages have come both ways as they were sent; how many bytes those of one way are.
    pub fn finish(self, limit: Duration) -> Result<u64> {
        let outputs = [self.serving.wait(limit)?, self.calling.wait(limit)?];
        let right = |output: &Output| {
            let line = output.text.lines().find(|it| it.ends_with(" bytes"))?;
            let bytes = line.split_whitespace().nth_back(1)?.parse().ok()?;
            (output.status == 0).then_some(bytes)
        };
        // What one end has to say may be that the other has failed.
        let [Some(bytes), Some(_)] = outputs.each_ref().map(right) else {
            return Err(Error::Output {
                what: "good end of the messages".into(),
                text: outputs.map(|output| output.text).join("\n"),
            });
        };
        Ok(bytes)
    }
}

/// Returns the number of connections that a guest's kernel has made for its sockets.
pub fn connections(guest: &Guest, limit: Duration) -> Result<usize> {
    let text = guest.sh("dmesg", limit)?;
    Ok(text.matches("conn connected").count())
}

/// Returns the number of bytes that the port of a guest's HCA has sent.
pub fn sent(guest: &Guest, device: &str, limit: Duration) -> Result<u64> {
    let file = format!("/sys/class/infiniband/{device}/ports/1/counters/port_xmit_data");
    let text = guest.sh(&format!("cat {file}"), limit)?;
    let words: u64 = text.trim().parse().map_err(|_| Error::Output {
        what: "number".into(),
        text: text.clone(),
    })?;
    // The counter is of words (InfiniBand Architecture Specification, volume 1, 16.1.3.5).
    Ok(4 * words)
}
