//! Prints the output of nodes, line by line with their names.

use std::{
    collections::VecDeque,
    io::{self, Write},
};

/// The output of one node.
#[derive(Debug)]
pub struct Lines {
    name: String,
    /// The beginning of an unfinished line.
    rest: Vec<u8>,
    /// The end of all that was printed.
    kept: VecDeque<u8>,
    most: usize,
}

impl Lines {
    /// None yet. The last `most` bytes are kept.
    pub fn new(name: &str, most: usize) -> Self {
        Self {
            name: name.into(),
            rest: Vec::new(),
            kept: VecDeque::new(),
            most,
        }
    }

    /// Takes what was printed, and shows whole lines.
    pub fn add(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        let over = self.kept.len().saturating_sub(self.most);
        self.kept.drain(..over);
        self.rest.extend(bytes);
        let whole = self.rest.iter().rposition(|&byte| byte == b'\n');
        // A line that does not end is shown in parts.
        let whole = whole.map_or(0, |at| at + 1);
        let whole = if self.rest.len() - whole > self.most {
            self.rest.len()
        } else {
            whole
        };
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        self.show(&lines);
    }

    /// Shows what no newline has ended.
    pub fn finish(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        self.show(&rest);
    }

    /// The end of what was printed.
    pub fn kept(self) -> String {
        let bytes: Vec<u8> = self.kept.into();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn show(&self, bytes: &[u8]) {
        let text = self.prefixed(bytes);
        // With nobody to read, the nodes still run to their end.
        let _ = io::stdout().lock().write_all(&text);
    }

    fn prefixed(&self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            text.extend(self.name.as_bytes());
            text.extend(b": ");
            text.extend(line.strip_suffix(b"\n").unwrap_or(line));
            text.push(b'\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_name() {
        let lines = Lines::new("n1", 10);
        assert_eq!(lines.prefixed(b"a\n\nb"), b"n1: a\nn1: \nn1: b\n");
        assert_eq!(lines.prefixed(b""), b"");
    }

    #[test]
    fn the_end_is_kept() {
        let mut lines = Lines::new("n1", 4);
        lines.add(b"12345");
        lines.add(b"6\n7");
        assert_eq!(lines.rest, b"7");
        lines.finish();
        assert_eq!(lines.kept(), "56\n7");
    }
}
