//! The pages for users, as they stand: every block is run and its output compared, or says why not.
//!
//! How blocks are marked is in docs/developers/testing.md.

mod page;

use std::path::{Path, PathBuf};
use std::process::Command;

use page::{Block, Session, blocks, same_lines, same_shape};
use regex::Regex;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ibvswitch");

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/users")
}

fn read(page: &str) -> String {
    std::fs::read_to_string(directory().join(page)).expect("is readable")
}

/// Runs all blocks of a page, in order and in one place, as a reader would.
fn run(page: &str) {
    let text = read(page);
    let mut session = Session::new();
    for block in blocks(page, &text) {
        session.enter(&block);
        match block.language.as_str() {
            "toml" => toml(&session, &block),
            "json" => json(&session, &block),
            "console" => console(&session, &block),
            "sh" if block.has("not run") => unrun(&block),
            "sh" if block.has("interrupted") => interrupted(&session, &block),
            "sh" => drop(session.succeed(&block, &block.text)),
            "text" => assert!(block.has("not run"), "{block} shows what nothing prints"),
            other => panic!("{block} is of the kind `{other}`"),
        }
    }
    commands_in(&text, page);
}

/// A configuration, which a check accepts: the block itself, or the one that it goes into.
fn toml(session: &Session, block: &Block) {
    let text = match block.value("into") {
        None => block.text.clone(),
        Some("the built-in configuration") => with(ibvswitch::config::DEFAULT, &block.text),
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
    match whole.contains(&header) && !header.starts_with("\n[[") {
        true => whole.replacen(&header, &format!("{header}{keys}"), 1),
        false => format!("{whole}\n{part}"),
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

/// What cannot be run here is at least well-formed.
fn unrun(block: &Block) {
    let checked = Command::new("sh").args(["-n", "-c", &block.text]).output();
    let checked = checked.expect("a shell");
    assert!(checked.status.success(), "{block}: {checked:?}");
    commands_in(&block.text, &block.to_string());
}

/// The commands that a text speaks of, in its sentences or in blocks that are not run, are there, with their
/// options.
fn commands_in(text: &str, place: &str) {
    let spoken = Regex::new(r"(?m)(?:^|[ `(/])ibvswitch ([a-z][^`|>&)#\n]*)").expect("is right");
    let marks = Regex::new("(?m)^ *<!-- test: .*$").expect("is right");
    for found in spoken.captures_iter(&marks.replace_all(text, "")) {
        let arguments = found[1].trim();
        // A grammar, a sentence, or a program with arguments of its own.
        if arguments.contains(['[', '…', ';']) || arguments.starts_with("external run") {
            continue;
        }
        let words: Vec<&str> = arguments.split_whitespace().collect();
        if !COMMANDS.contains(&words[0]) {
            continue;
        }
        let words = words.iter().take_while(|word| !word.ends_with('"'));
        let output = Command::new(PROGRAM)
            .args(words)
            .arg("--help")
            .output()
            .expect("starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: `{arguments}`: {error}");
    }
}

/// The words after `ibvswitch` that make it a command and not a part of a sentence.
const COMMANDS: [&str; 15] = [
    "run", "vf", "status", "topology", "link", "sm", "external", "counters", "metrics", "capture",
    "config", "simulate", "demo", "bench", "help",
];

macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        $(
            #[test]
            fn $test() {
                run($page);
            }
        )*

        #[test]
        fn every_page_is_tested() {
            let mut pages: Vec<String> = std::fs::read_dir(directory())
                .expect("is there")
                .map(|entry| entry.expect("is readable").file_name().to_string_lossy().into_owned())
                .filter(|name| name.ends_with(".md"))
                .collect();
            pages.sort();
            assert_eq!(pages, [$($page),*]);
        }
    };
}

pages! {
    attach_a_vm: "attach-a-vm.md",
    commands: "commands.md",
    configuration: "configuration.md",
    errors: "errors.md",
    install: "install.md",
    migrate_a_vm: "migrate-a-vm.md",
    simulate: "simulate.md",
    subnet: "subnet.md",
}
