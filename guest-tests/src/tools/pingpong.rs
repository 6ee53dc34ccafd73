//! The `ibv_*_pingpong` programs of rdma-core between two guests.

use std::{fmt, time::Duration};

use crate::{
    error::{Error, Result},
    guest::Guest,
};

/// The program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pingpong {
    /// `ibv_rc_pingpong`: reliable connection.
    Rc,
    /// `ibv_uc_pingpong`: unreliable connection.
    Uc,
    /// `ibv_ud_pingpong`: unreliable datagrams.
    Ud,
    /// `ibv_srq_pingpong`: 16 reliable connections that share a receive queue.
    Srq,
    /// `ibv_xsrq_pingpong`: extended reliable connections.
    Xsrq,
}

impl fmt::Display for Pingpong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "ibv_rc_pingpong",
            Self::Uc => "ibv_uc_pingpong",
            Self::Ud => "ibv_ud_pingpong",
            Self::Srq => "ibv_srq_pingpong",
            Self::Xsrq => "ibv_xsrq_pingpong",
        })
    }
}

impl Pingpong {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::Srq, Self::Xsrq];

    /// The option that makes both ends compare every payload byte. ibv_xsrq_pingpong has none.
    fn check(self) -> &'static str {
        if self == Self::Xsrq { "" } else { " -c" }
    }

    /// Runs it with payload check over `device`, sleeping on completion events or polling, with
    /// further `options`. Both ends have to succeed and to report what they moved.
    pub fn between(
        self,
        guests: (&Guest, &Guest),
        device: &str,
        events: bool,
        options: &str,
        limit: Duration,
    ) -> Result<()> {
        self.printed(guests, device, events, options, limit)
            .map(drop)
    }

    /// The same; what both ends printed.
    pub fn printed(
        self,
        (server, client): (&Guest, &Guest),
        device: &str,
        events: bool,
        options: &str,
        limit: Duration,
    ) -> Result<[String; 2]> {
        let events = if events { " -e" } else { "" };
        let command = format!("{self} -d {device}{}{events} {options}", self.check());
        let command = command.trim_end();
        let mut serving = server.spawn(command)?;
        serving.await_port("18515", limit)?;
        let calling = format!("{command} {}", server.address());
        let printed = serving.with_client(client, &calling, limit)?;
        for text in &printed {
            // The programs end with status 0 though the payload was wrong.
            let moved = text.contains(" bytes in ") || self == Self::Xsrq;
            if !moved || text.contains("invalid data") {
                return Err(Error::Output {
                    what: format!("proof that {command} moved the right bytes"),
                    text: text.clone(),
                });
            }
        }
        Ok(printed)
    }
}
