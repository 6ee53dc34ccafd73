//! UCX between two guests: the library under MPI and others, which writes work requests itself.

use std::{fmt, time::Duration};

use crate::{
    error::{Error, Result},
    guest::Guest,
};

/// UCX's transport over an HCA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connections, requests written by UCX.
    RcMlx5,
    /// The same, where the HCA matches messages with tags.
    RcTags,
    /// Reliable connections through libibverbs.
    RcVerbs,
    /// Dynamic connections, requests written by UCX.
    DcMlx5,
    /// Datagrams, requests written by UCX.
    UdMlx5,
    /// Datagrams through libibverbs.
    UdVerbs,
}

/// As `UCX_TLS` names it, with what UCX needs to make its connections.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RcMlx5 => "rc_x",
            Self::RcTags => "rc_x UCX_RC_MLX5_TM_ENABLE=y",
            Self::RcVerbs => "rc_v",
            Self::DcMlx5 => "dc_x",
            Self::UdMlx5 => "ud_x",
            Self::UdVerbs => "ud_v",
        })
    }
}

/// A terminal: without one for its input, ucx_perftest looks for other processes by MPI.
const TERMINAL: &str = "</dev/ptmx";

impl Transport {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::RcMlx5,
        Self::RcTags,
        Self::RcVerbs,
        Self::DcMlx5,
        Self::UdMlx5,
        Self::UdVerbs,
    ];

    /// Runs tests of ucx_perftest, one after the other in a pair of processes, over `device`. Each
    /// test is its options. Both ends have to succeed, in `limit` each.
    pub fn perftest(
        self,
        (server, client): (&Guest, &Guest),
        device: &str,
        tests: &[&str],
        limit: Duration,
    ) -> Result<()> {
        let lines: String = (tests.iter().enumerate())
            .map(|(number, test)| format!("test{number} {test}\\n"))
            .collect();
        for guest in [server, client] {
            guest.sh(&format!("printf '{lines}' > tests"), limit)?;
        }
        let command = format!(
            "UCX_TLS={self} UCX_NET_DEVICES={device}:1 ucx_perftest -f -b tests {TERMINAL}"
        );
        let mut serving = server.spawn(&command)?;
        serving.await_port("13337", limit)?;
        let calling = command.replace(TERMINAL, &format!("{} {TERMINAL}", server.address()));
        let [_, text] = serving.with_client(client, &calling, limit)?;
        // It ends with status 0 although tests have failed; a test that has ended has a line.
        let ended = |test: &str| text.lines().any(|line| line.trim_start().starts_with(test));
        if (0..tests.len()).all(|number| ended(&format!("test{number} "))) {
            return Ok(());
        }
        Err(Error::Output {
            what: format!("{} results of {command}", tests.len()),
            text,
        })
    }

    /// Reads and writes of `sizes` (`MIN:MAX`, in bytes) by io_demo, which compares every byte. It
    /// connects over the guests' Ethernet.
    pub fn io_demo(
        self,
        (server, client): (&Guest, &Guest),
        device: &str,
        sizes: &str,
        limit: Duration,
    ) -> Result<()> {
        // One that nobody has used: io_demo does not take a port whose last connection lingers.
        let port = 13400 + self as u16;
        let command = format!(
            "UCX_NET_DEVICES={device}:1,eth0 UCX_TLS=tcp,{self} io_demo -p {port} -q -d {sizes}"
        );
        let mut serving = server.spawn(&command)?;
        serving.await_port(&port.to_string(), limit)?;
        let calling = format!(
            "{command} -i 100 -w 4 -o read,write -c 1 {}",
            server.address()
        );
        client.sh(&calling, limit).map(drop)
    }
}
