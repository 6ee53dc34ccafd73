//! QEMU's test protocol (QEMU's system/qtest.c): accesses to ports and memory as a processor would make them,
//! while no processor runs.

use std::path::Path;
use std::time::{Duration, Instant};

use super::MonitorError;
use super::line::Lines;

/// Time limit of an access. The server of a device answers it, or QEMU gives up after 5 s.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected QEMU.
#[derive(Debug)]
pub struct Qtest(Lines);

impl Qtest {
    /// Connects to the socket of the test protocol.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn connect(socket: &Path) -> Result<Self, MonitorError> {
        Lines::connect(socket).map(Self)
    }

    fn command(&mut self, command: &str) -> Result<String, MonitorError> {
        self.0.send(command, ACCESS_TIMEOUT)?;
        let deadline = Instant::now() + ACCESS_TIMEOUT;
        loop {
            let answer = self.0.receive(deadline)?;
            // Interrupts are told of, too, where somebody has asked for that.
            if answer.starts_with("IRQ ") {
                continue;
            }
            return match answer.strip_prefix("OK") {
                Some(value) => Ok(value.trim().to_owned()),
                None => Err(self.0.refused(format!("refused `{command}`"), answer)),
            };
        }
    }

    /// An error about what this QEMU said.
    pub fn refused(&self, what: impl Into<String>, answer: impl Into<String>) -> MonitorError {
        self.0.refused(what, answer)
    }

    /// Writes 32 bits to an I/O port.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn outl(&mut self, port: u16, value: u32) -> Result<(), MonitorError> {
        self.command(&format!("outl {port:#x} {value:#x}"))
            .map(drop)
    }

    /// Reads 32 bits from an I/O port.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn inl(&mut self, port: u16) -> Result<u32, MonitorError> {
        let value = self.command(&format!("inl {port:#x}"))?;
        let digits = value.trim_start_matches("0x");
        u32::from_str_radix(digits, 16)
            .map_err(|_| self.0.refused("does not speak QEMU's test protocol", value))
    }

    /// Writes 32 bits of memory, at an address of the machine.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn writel(&mut self, address: u64, value: u32) -> Result<(), MonitorError> {
        let command = format!("writel {address:#x} {value:#x}");
        self.command(&command).map(drop)
    }
}
