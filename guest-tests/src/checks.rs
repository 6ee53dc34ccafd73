//! Many named assertions on guests that took long to boot.
//!
//! A test boots its guests once and runs all its checks; one that fails does not keep the others
//! from running, and the test's end names all that failed.

use std::{fmt::Display, panic::Location, time::Instant};

use crate::{Result, progress};

/// A list of checks, with those that failed.
#[derive(Debug, Default)]
pub struct Checks {
    passed: usize,
    failed: Vec<String>,
}

impl Checks {
    /// Runs one check.
    pub fn check(&mut self, name: impl Display, check: impl FnOnce() -> Result<()>) {
        let start = Instant::now();
        let result = check();
        let took = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                progress::step(format_args!("ok    {name} ({took:.1} s)"));
            }
            Err(error) => {
                progress::step(format_args!("FAIL  {name} ({took:.1} s)\n{error}"));
                self.failed.push(name.to_string());
            }
        }
    }

    /// Ends the list.
    ///
    /// # Panics
    /// If a check failed, or if there was none.
    #[track_caller]
    pub fn finish(self) {
        let total = self.passed + self.failed.len();
        assert!(total > 0, "no check has run ({})", Location::caller());
        assert!(
            self.failed.is_empty(),
            "{} of {total} checks failed:\n  {}",
            self.failed.len(),
            self.failed.join("\n  ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    #[should_panic(expected = "1 of 2 checks failed:\n  second")]
    fn a_failed_check_fails_the_list() {
        let mut checks = Checks::default();
        checks.check("first", || Ok(()));
        checks.check("second", || Err(Error::Host("as intended".into())));
        checks.finish();
    }

    #[test]
    #[should_panic(expected = "no check has run")]
    fn no_check_is_no_success() {
        Checks::default().finish();
    }
}
