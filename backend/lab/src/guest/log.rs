//! Logs that a guest fills: as much of them as is of use, and no more.
//!
//! QEMU's output comes by a pipe. Its end is kept in a file, and where that is full it becomes the file before,
//! so that both together have at least a mebibyte of what came last.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// A file is no longer.
const MAX_BYTES: u64 = 1 << 20;

/// Time limit for the end of a log after its writer is gone.
const END: Duration = Duration::from_secs(5);

/// A log that is written.
#[derive(Debug, Clone)]
pub struct Log(Arc<(Mutex<bool>, Condvar)>);

impl Log {
    /// Keeps what comes out of `from` in `path`, in a thread of its own, until nobody writes any more.
    pub fn keep(from: impl Read + Send + 'static, path: &Path) -> io::Result<Self> {
        let log = Self(Arc::default());
        let ended = log.clone();
        let mut file = Bounded::create(path)?;
        thread::spawn(move || {
            // Output that cannot be kept is lost, and its writer goes on.
            let _ = copy(from, &mut file);
            let (done, changed) = &*ended.0;
            *done.lock().unwrap_or_else(PoisonError::into_inner) = true;
            changed.notify_all();
        });
        Ok(log)
    }

    /// Waits until all is in the file that somebody has written who is gone.
    pub fn settle(&self) {
        let (done, changed) = &*self.0;
        let done = done.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = changed.wait_timeout_while(done, END, |done| !*done);
    }
}

/// Returns the text of the log in this file.
pub fn read(path: &Path) -> String {
    let bytes = [before(path), path.to_owned()].map(|it| fs::read(it).unwrap_or_default());
    String::from_utf8_lossy(&bytes.concat()).into_owned()
}

/// The file before.
fn before(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".1");
    name.into()
}

fn copy(mut from: impl Read, to: &mut Bounded) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            // It is read on where it cannot be kept: who writes would wait.
            Ok(count) => drop(to.add(&bytes[..count])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[derive(Debug)]
struct Bounded {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Bounded {
    fn create(path: &Path) -> io::Result<Self> {
        let _ = fs::remove_file(before(path));
        Ok(Self {
            path: path.to_owned(),
            file: File::create(path)?,
            length: 0,
        })
    }

    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.length + bytes.len() as u64 > MAX_BYTES {
            fs::rename(&self.path, before(&self.path))?;
            self.file = File::create(&self.path)?;
            self.length = 0;
        }
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_takes_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (reader, mut writer) = io::pipe().unwrap();
        let log = Log::keep(reader, &path).unwrap();
        for number in 0..600_000 {
            writeln!(writer, "line {number}").unwrap();
        }
        drop(writer);
        log.settle();
        let text = read(&path);
        assert!(text.ends_with("line 599998\nline 599999\n"));
        assert!(
            (MAX_BYTES as usize..=2 * MAX_BYTES as usize).contains(&text.len()),
            "{}",
            text.len()
        );
        let files = fs::read_dir(dir.path()).unwrap().flatten();
        assert!(files.map(|it| it.metadata().unwrap().len()).sum::<u64>() <= 2 * MAX_BYTES);
    }
}
