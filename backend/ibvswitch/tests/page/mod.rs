//! Pages in Markdown: their blocks, and a place where these are run.
//!
//! The tests of backend/lab and backend/research/simulator use this module, too.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Read, pipe};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use regex::Regex;
use serde_json::Value;

/// The program that pages call `ibvswitch`.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    pub path: &'a Path,
    /// The words after `ibvswitch` that make it a command and not a part of a sentence.
    pub commands: &'a [&'a str],
}

/// The folder of the pages.
pub fn directory() -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let folder = above.find_map(|it| it.join("docs/users").canonicalize().ok());
    folder.expect("docs/users is in the repository")
}

fn read(page: &str) -> String {
    std::fs::read_to_string(directory().join(page)).expect("is readable")
}

/// Runs all blocks of a page, in order and in one place, as a reader would.
pub fn follow(page: &str, program: Program<'_>) {
    let text = read(page);
    let mut session = Session::new(program.path);
    for block in blocks(page, &text) {
        session.enter(&block);
        match block.language.as_str() {
            "toml" => toml(&session, &block),
            "json" => json(&session, &block),
            "console" => console(&session, &block),
            "sh" if block.has("not run") => unrun(&block, program),
            "sh" if block.has("interrupted") => interrupted(&session, &block),
            "sh" => drop(session.succeed(&block, &block.text)),
            "text" => assert!(block.has("not run"), "{block} shows what nothing prints"),
            other => panic!("{block} is of the kind `{other}`"),
        }
    }
    commands_in(&text, page, program);
}

/// A configuration, which a check accepts: the block itself, or the one that it goes into.
fn toml(session: &Session, block: &Block) {
    let text = match block.value("into") {
        None => block.text.clone(),
        Some("the built-in configuration") => with(
            &session.succeed(block, "ibvswitch config default"),
            &block.text,
        ),
        Some(file) => with(&session.read(file), &block.text),
    };
    let file = block.value("file").unwrap_or("checked.toml");
    session.write(file, &text);
    if block.has("wrong") {
        return;
    }
    session.succeed(block, &format!("ibvswitch config check --config {file}"));
}

/// `part` put into a configuration: below the header of its table where the configuration has that, and
/// else at the end.
fn with(whole: &str, part: &str) -> String {
    let (header, keys) = part.split_once('\n').expect("has keys");
    let header = format!("\n{header}\n");
    if whole.contains(&header) && !header.starts_with("\n[[") {
        whole.replacen(&header, &format!("{header}{keys}"), 1)
    } else {
        format!("{whole}\n{part}")
    }
}

/// Data with the keys and types that a command prints.
fn json(session: &Session, block: &Block) {
    let command = block.value("shape of").expect("says of which command");
    let printed = session.succeed(block, command);
    let [shown, printed] = [&block.text, &printed]
        .map(|text| serde_json::from_str(text).unwrap_or_else(|error| panic!("{block}: {error}")));
    if let Err(difference) = same_shape(&shown, &printed, "") {
        panic!("{block}: {difference}");
    }
}

/// Commands behind `$ `, each followed by what it prints.
fn console(session: &Session, block: &Block) {
    let mut lines = block.text.lines().peekable();
    while let Some(line) = lines.next() {
        let command = line.strip_prefix("$ ");
        let command = command.unwrap_or_else(|| panic!("{block}: no command before `{line}`"));
        let mut shown = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
            shown.push(line);
        }
        let (_, printed) = session.run(command);
        let varies = block.values("varies");
        let varies: Vec<Regex> = varies
            .map(|pattern| Regex::new(pattern).expect("is a regular expression"))
            .collect();
        let plain = |line: &str| {
            let line = line.trim_end().to_owned();
            varies.iter().fold(line, |line, pattern| {
                pattern.replace_all(&line, "*").into_owned()
            })
        };
        let shown: Vec<String> = shown.into_iter().map(plain).collect();
        let lines: Vec<String> = printed.lines().map(plain).collect();
        assert!(
            same_lines(&shown, &lines),
            "{block}: `{command}` prints\n{printed}"
        );
    }
}

/// Commands that run until somebody ends them, one line each.
fn interrupted(session: &Session, block: &Block) {
    for line in block.text.lines() {
        let printed = session.interrupt(line);
        assert!(!printed.contains("ibvswitch: "), "{block}: {printed}");
    }
}

/// Checks the syntax of a block that cannot be run here.
fn unrun(block: &Block, program: Program<'_>) {
    let checked = Command::new("sh").args(["-n", "-c", &block.text]).output();
    let checked = checked.expect("a shell");
    assert!(checked.status.success(), "{block}: {checked:?}");
    commands_in(&block.text, &block.to_string(), program);
}

/// The commands that a text speaks of, in its sentences or in blocks that are not run, are there, with their
/// options.
fn commands_in(text: &str, place: &str, program: Program<'_>) {
    let spoken = Regex::new(r"(?m)(?:^|[ `(/])ibvswitch ([a-z][^`|>&)#\n]*)").expect("is right");
    let marks = Regex::new("(?m)^ *<!-- test: .*$").expect("is right");
    for found in spoken.captures_iter(&marks.replace_all(text, "")) {
        let arguments = found[1].trim();
        // A grammar, a sentence, or a program with arguments of its own.
        if arguments.contains(['[', '…', ';']) || arguments.starts_with("external run") {
            continue;
        }
        let words: Vec<&str> = arguments.split_whitespace().collect();
        if !program.commands.contains(&words[0]) {
            continue;
        }
        // What follows `--` is another program's.
        let ours = |word: &&&str| !word.ends_with('"') && **word != "--";
        let words = words.iter().take_while(ours);
        let output = Command::new(program.path)
            .args(words)
            .arg("--help")
            .output()
            .expect("starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: `{arguments}`: {error}");
    }
}

/// A fenced block, with what comments before it say about its test.
#[derive(Debug, Default)]
struct Block {
    page: String,
    line: usize,
    language: String,
    text: String,
    /// In the order of the page.
    marks: Vec<(String, String)>,
}

impl Block {
    fn has(&self, mark: &str) -> bool {
        self.value(mark).is_some()
    }

    fn value(&self, mark: &str) -> Option<&str> {
        self.values(mark).next()
    }

    fn values(&self, mark: &str) -> impl Iterator<Item = &str> {
        let marks = self.marks.iter().filter(move |(name, _)| name == mark);
        marks.map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.page, self.line)
    }
}

/// The blocks of a page. A mark is a comment such as `<!-- test: varies: [0-9]+ us -->`.
fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut marks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let bare = line.trim_start();
        if let Some(mark) = bare.strip_prefix("<!-- test: ") {
            let mark = mark.strip_suffix(" -->").expect("a comment in one line");
            let (name, value) = mark.split_once(": ").unwrap_or((mark, ""));
            marks.push((name.to_owned(), value.to_owned()));
        } else if let Some(language) = bare.strip_prefix("```") {
            let indent = line.len() - bare.len();
            let mut block = Block {
                page: page.to_owned(),
                line: number + 1,
                language: language.to_owned(),
                marks: std::mem::take(&mut marks),
                ..Block::default()
            };
            for (_, line) in lines.by_ref() {
                if line.trim() == "```" {
                    break;
                }
                block.text.push_str(line.get(indent..).unwrap_or_default());
                block.text.push('\n');
            }
            found.push(block);
        } else if !bare.is_empty() {
            assert_eq!(marks, [], "{page}:{}: a mark and no block", number + 1);
        }
    }
    found
}

/// A directory and a daemon, where a page is followed.
struct Session {
    program: PathBuf,
    dir: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Session {
    fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            dir: tempfile::tempdir().expect("a directory"),
            daemon: None,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("is written");
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("an earlier block is this file")
    }

    /// Makes what a block needs: another daemon, or what commands that the reader does not see leave.
    fn enter(&mut self, block: &Block) {
        if let Some(file) = block.value("daemon") {
            self.stop();
            let mut command = self.command(&self.program);
            if !file.is_empty() {
                command.args(["--config", file]);
            }
            let mut child = command
                .arg("run")
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("starts");
            let mut line = String::new();
            let out = child.stdout.as_mut().expect("is piped");
            BufReader::new(out).read_line(&mut line).expect("is text");
            self.daemon = Some(child);
            assert_eq!(line, "ready\n", "{block}");
        }
        for command in block.values("first") {
            self.succeed(block, command);
        }
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for variable in [
            "IBVSWITCH_CONFIG",
            "RUST_LOG",
            "NOTIFY_SOCKET",
            "LD_PRELOAD",
        ] {
            command.env_remove(variable);
        }
        let beside = self.program.parent().expect("a directory").display();
        let others = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(self.dir.path())
            .env("PATH", format!("{beside}:{others}:/usr/sbin"))
            .env("IBVSWITCH_RUNTIME_DIR", self.path("run"))
            .env("OSM_CACHE_DIR", self.dir.path())
            .env("OSM_TMP_DIR", self.dir.path())
            .env("HOME", self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Starts a shell on a script; what it and all it starts print.
    fn shell(&self, script: &str) -> (Child, Receiver<Vec<u8>>) {
        let (mut out, both) = pipe().expect("a pipe");
        let child = self
            .command("sh")
            .args(["-c", script])
            .process_group(0)
            .stdout(both.try_clone().expect("a second end"))
            .stderr(both)
            .spawn()
            .expect("a shell");
        let (sender, printed) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                // Whether somebody listens or not, the pipe must not fill up.
                let _ = sender.send(bytes[..count].to_vec());
            }
        });
        (child, printed)
    }

    /// Returns the output of a script, with the directory of sockets that pages name.
    fn text(&self, printed: Vec<u8>) -> String {
        let own = self.path("run").display().to_string();
        let text = String::from_utf8(printed).expect("is text");
        text.replace(&own, "/run/ibvswitch")
    }

    /// Runs a script to its end, and ends what it has left running.
    fn run(&self, script: &str) -> (ExitStatus, String) {
        let (mut child, printed) = self.shell(script);
        let status = child.wait().expect("ends");
        // Nobody may be left.
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        (status, self.text(printed.iter().flatten().collect()))
    }

    /// The same of a script that must succeed.
    #[track_caller]
    fn succeed(&self, block: &Block, script: &str) -> String {
        let (status, printed) = self.run(&format!("set -e\n{script}"));
        assert!(status.success(), "{block}: {script}\n{printed}");
        printed
    }

    /// Runs a script that ends when it is interrupted; waits until it has printed something.
    fn interrupt(&self, script: &str) -> String {
        let (mut child, printed) = self.shell(script);
        let mut seen = Vec::new();
        while seen.is_empty() {
            assert_eq!(child.try_wait().expect("can be asked"), None, "{script}");
            // Something happens in the subnet.
            self.run("ibvswitch sm sweep");
            seen.extend(printed.try_iter().flatten());
        }
        let group = Pid::from_raw(child.id() as i32);
        killpg(group, Signal::SIGINT).expect("is running");
        child.wait().expect("ends");
        let _ = killpg(group, Signal::SIGKILL);
        seen.extend(printed.iter().flatten());
        self.text(seen)
    }

    fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let pid = Pid::from_raw(daemon.id() as i32);
            let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
            let _ = daemon.wait();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether lines are those that are shown, where `...` stands for any lines.
fn same_lines(shown: &[String], printed: &[String]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [dots, rest @ ..] if dots == "..." => {
            (0..=printed.len()).any(|skipped| same_lines(rest, &printed[skipped..]))
        }
        [line, rest @ ..] => printed.first() == Some(line) && same_lines(rest, &printed[1..]),
    }
}

/// Whether two values have the same keys with values of the same types, of an array's elements one.
/// What is `null`, empty, or counted by names that come and go on one side says nothing.
fn same_shape(shown: &Value, printed: &Value, at: &str) -> Result<(), String> {
    match (shown, printed) {
        (Value::Null, _) | (_, Value::Null) => Ok(()),
        (Value::Object(shown), Value::Object(printed)) => {
            if shown.is_empty() || printed.is_empty() {
                return Ok(());
            }
            let keys =
                |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
            if keys(shown) != keys(printed) {
                let [shown, printed] = [keys(shown), keys(printed)].map(|keys| keys.join(", "));
                return Err(format!("{at} has {printed}, and shown are {shown}"));
            }
            shown.iter().try_for_each(|(key, value)| {
                same_shape(value, &printed[key], &format!("{at}.{key}"))
            })
        }
        (Value::Array(shown), Value::Array(printed)) => {
            match (shown.first(), alike(shown, printed)) {
                (Some(shown), Some(printed)) => same_shape(shown, printed, &format!("{at}[0]")),
                _ => Ok(()),
            }
        }
        _ if std::mem::discriminant(shown) == std::mem::discriminant(printed) => Ok(()),
        _ => Err(format!("{at} is {printed}, and shown is {shown}")),
    }
}

/// The element of a list that one shown of another is to be compared with: one of the same kind, where they have
/// kinds.
fn alike<'a>(shown: &[Value], printed: &'a [Value]) -> Option<&'a Value> {
    let kind = shown.first()?.get("kind");
    printed.iter().find(|element| element.get("kind") == kind)
}
