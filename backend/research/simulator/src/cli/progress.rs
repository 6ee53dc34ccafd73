//! Progress of an experiment, on standard error if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;

use crate::Step;

/// The line that tells it. Gone when dropped.
pub(super) struct Bar(Option<Mutex<usize>>);

impl Bar {
    pub(super) fn new() -> Self {
        Self(io::stderr().is_terminal().then(Mutex::default))
    }

    /// Shows how far it is.
    pub(super) fn show(&self, step: Step<'_>) {
        let Some(most) = &self.0 else {
            return;
        };
        let mut most = most.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let line = line(step);
        let width = line.chars().count();
        *most = width.max(*most);
        // With standard error gone there is nobody left to tell.
        let _ = write!(io::stderr(), "\r{line:most$}");
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(most) = &self.0 {
            let most = *most.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let _ = write!(io::stderr(), "\r{:most$}\r", "");
        }
    }
}

fn line(step: Step<'_>) -> String {
    const WIDTH: usize = 24;
    let Step { what, done, of } = step;
    let of = of.max(1);
    let full = (WIDTH * done.min(of)) / of;
    let bar: String = (0..WIDTH)
        .map(|at| if at < full { '#' } else { '.' })
        .collect();
    format!("[{bar}] {done}/{of} {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line() {
        let step = |done, of| Step {
            what: "minhop",
            done,
            of,
        };
        assert_eq!(line(step(1, 4)), "[######..................] 1/4 minhop");
        assert_eq!(line(step(9, 4)), "[########################] 9/4 minhop");
        assert!(line(step(0, 0)).starts_with("[........................] 0/1"));
    }
}
