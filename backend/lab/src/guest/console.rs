//! A guest's serial console in this terminal.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr},
};

use crate::error::{Doing, Result};

/// Ctrl-], as in telnet(1).
const LEAVE: u8 = 0x1d;

/// Connects this terminal to the console at `socket`, until Ctrl-] or the guest's end.
pub fn attach(socket: &Path) -> Result<()> {
    let mut stream = UnixStream::connect(socket).at("connect to", socket)?;
    let mut input = io::stdin();
    let mut output = io::stdout();
    println!("connected to {}; Ctrl-] leaves", socket.display());
    let _raw = Raw::new()?;
    // Makes the guest's shell print its prompt.
    stream.write_all(b"\n").at("write to", socket)?;
    let mut bytes = [0; 4096];
    loop {
        let stdin = io::stdin();
        let mut wanted = [
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(stream.as_fd(), PollFlags::POLLIN),
        ];
        poll(&mut wanted, PollTimeout::NONE).doing("wait for input")?;
        let [typed, shown] = wanted.map(|fd| fd.any().unwrap_or(true));
        if shown {
            let count = stream.read(&mut bytes).at("read from", socket)?;
            if count == 0 {
                return Ok(());
            }
            output
                .write_all(&bytes[..count])
                .doing("write to the terminal")?;
            output.flush().doing("write to the terminal")?;
        }
        if typed {
            let count = input.read(&mut bytes).doing("read from the terminal")?;
            if count == 0 || bytes[..count].contains(&LEAVE) {
                return Ok(());
            }
            stream.write_all(&bytes[..count]).at("write to", socket)?;
        }
    }
}

/// The terminal in raw mode; as it was before when dropped.
struct Raw(Option<Termios>);

impl Raw {
    fn new() -> Result<Self> {
        let stdin = io::stdin();
        let terminal: BorrowedFd<'_> = stdin.as_fd();
        // Input from a file or pipe is passed on as it is.
        let Ok(before) = tcgetattr(terminal) else {
            return Ok(Self(None));
        };
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(terminal, SetArg::TCSANOW, &raw).doing("set the terminal's mode")?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // With the terminal gone there is nothing to restore.
            let _ = tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, before);
        }
    }
}
