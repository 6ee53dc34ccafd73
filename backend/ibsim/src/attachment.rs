//! This process as a client.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use wire::attribute::PortInfo;

use crate::protocol::{CONTROL_SIZE, Connect, Control, DATA, Kind};
use crate::{client_name, control_name, service_name};

/// Time limit for the answer to a question. The other side answers at once, unless it is stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why this process is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The other side does not run, or is another user's.
    #[error(
        "cannot reach the subnet at the sockets `{base}`: {source}; start ibsim or the daemon, as this user or root, \
         or write the name that its sockets have"
    )]
    Unreachable {
        /// Beginning of the sockets' names.
        base: String,
        /// The system's error.
        source: io::Error,
    },
    /// The answer is no.
    #[error("the subnet at the sockets `{base}` refuses to {what}; its log says why")]
    Refused {
        /// Beginning of the sockets' names.
        base: String,
        /// The action that it refuses.
        what: String,
    },
}

/// This process, attached to a port. There is one in a process at a time.
#[derive(Debug)]
pub struct Attachment {
    base: String,
    control: UnixDatagram,
    data: UnixDatagram,
    id: u32,
}

impl Attachment {
    /// Attaches to the node `node`, or to the default one, of the subnet whose sockets' names begin with `base`.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn new(base: &str, node: Option<&str>) -> Result<Self, AttachError> {
        let unreachable = |source| AttachError::Unreachable {
            base: base.to_owned(),
            source,
        };
        let pid = std::process::id();
        let address = |name: String| SocketAddr::from_abstract_name(name);
        let bound = |name| UnixDatagram::bind_addr(&address(name)?);
        let open = || {
            let data = bound(client_name(base, pid))?;
            let control = bound(format!("{base}:ctl{pid}\0"))?;
            control.connect_addr(&address(control_name(base))?)?;
            control.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            Ok((data, control))
        };
        let (data, control) = open().map_err(unreachable)?;
        let mut attachment = Self {
            base: base.to_owned(),
            control,
            data,
            id: 0,
        };
        let connect = Connect {
            id: pid,
            responder: false,
            node: node.unwrap_or_default().to_owned(),
        };
        let at = node.map_or_else(
            || "the default node".to_owned(),
            |node| format!("node `{node}`"),
        );
        let what = format!("attach this program to {at}");
        let answer = attachment.ask(Kind::Connect, &connect.emit(), &what)?;
        attachment.id = Connect::parse(&answer).id;
        let service = service_name(base, attachment.id as u16);
        let connected = address(service).and_then(|to| attachment.data.connect_addr(&to));
        connected.map_err(unreachable)?;
        // From here on only the other side can send; it has sent nothing yet.
        let drain = || {
            attachment.data.set_nonblocking(true)?;
            while attachment.data.recv(&mut [0]).is_ok() {}
            attachment.data.set_nonblocking(false)
        };
        drain().map_err(unreachable)?;
        Ok(attachment)
    }

    fn ask(&self, kind: Kind, data: &[u8], what: &str) -> Result<[u8; DATA], AttachError> {
        let asked = || {
            let question = Control::question(self.id, kind, data);
            self.control.send(&question.emit())?;
            let mut bytes = [0; CONTROL_SIZE];
            let length = self.control.recv(&mut bytes)?;
            Ok(Control::parse(&bytes[..length]))
        };
        let base = self.base.clone();
        match asked() {
            Ok(Some(answer)) if answer.kind == kind => Ok(answer.data),
            Ok(_) => Err(AttachError::Refused {
                base,
                what: what.to_owned(),
            }),
            Err(source) => Err(AttachError::Unreachable { base, source }),
        }
    }

    /// PortInfo of the port.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn port_info(&self) -> Result<PortInfo, AttachError> {
        let what = "describe the port";
        let data = self.ask(Kind::GetPortInfo, &1u32.to_ne_bytes(), what)?;
        PortInfo::parse(&data).map_err(|_| AttachError::Refused {
            base: self.base.clone(),
            what: what.to_owned(),
        })
    }

    /// Makes this process the subnet manager at its port, or makes it none any more.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn set_manager(&self, manages: bool) -> Result<(), AttachError> {
        let what = "have this program as the subnet manager at its port";
        let data = u32::from(manages).to_ne_bytes();
        self.ask(Kind::SetIsSm, &data, what).map(drop)
    }

    /// The socket for MADs.
    #[must_use]
    pub fn socket(&self) -> &UnixDatagram {
        &self.data
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // The other side notices by itself where it does not hear this.
        let _ = self.ask(Kind::Disconnect, &[], "detach this program");
    }
}
