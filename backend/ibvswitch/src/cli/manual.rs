//! `ibvswitch man`

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{Cli, CliError};

/// Section of the manual pages: programs.
const SECTION: &str = "1";

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes ibvswitch.1 and a page for each command, such as ibvswitch-vf-migrate.1. `man` finds them in
/usr/local/share/man/man1, and `man -l FILE` shows a page anywhere.")]
pub(super) struct ManArgs {
    /// Directory to write to; it is created if missing.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn run(args: &ManArgs) -> Result<(), CliError> {
    write(&args.dir).map_err(|(path, error)| {
        CliError::Failed(format!(
            "{} cannot be written: {error}; name another directory with --dir",
            path.display()
        ))
    })
}

fn write(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    fs::create_dir_all(dir).map_err(|error| (dir.to_owned(), error))?;
    for (name, page) in pages() {
        let path = dir.join(name);
        fs::write(&path, page).map_err(|error| (path, error))?;
    }
    Ok(())
}

/// The name of each page's file, and the page.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    collect(&root, &[], &mut pages);
    pages
}

/// A command and the name of its page: a program has the name that the page would have.
const RENAMED: (&str, &str) = ("sm", "sm-command");

fn collect(command: &Command, above: &[&str], pages: &mut Vec<(String, Vec<u8>)>) {
    let command = &if above.is_empty() {
        let (name, page) = RENAMED;
        command.clone().mut_subcommand(name, |sub| {
            sub.name(page).display_name(format!("ibvswitch-{page}"))
        })
    } else {
        command.clone()
    };
    let name = command.get_display_name().unwrap_or(command.get_name());
    pages.push((format!("{name}.{SECTION}"), page(command, above)));
    let above = [above, &[name]].concat();
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    shown.for_each(|sub| collect(sub, &above, pages));
}

fn page(command: &Command, above: &[&str]) -> Vec<u8> {
    let man = Man::new(command.clone())
        .section(SECTION)
        // The same program makes the same pages, whatever day it is. Of an empty date nothing would be
        // written, and what follows it would be taken for one.
        .date(" ")
        .source(concat!("ibvswitch ", env!("CARGO_PKG_VERSION")))
        .manual("ibvswitch");
    let mut page = Vec::new();
    let written = man
        .render_title(&mut page)
        .and_then(|()| man.render_name_section(&mut page))
        .and_then(|()| man.render_synopsis_section(&mut page))
        .and_then(|()| man.render_description_section(&mut page))
        .and_then(|()| man.render_options_section(&mut page))
        .and_then(|()| {
            if command.has_subcommands() {
                man.render_subcommands_section(&mut page)?;
            }
            let mut rest = Roff::new();
            if let Some(text) = command.get_after_help() {
                notes(&mut rest, &text.to_string());
            }
            see_also(&mut rest, above);
            rest.to_writer(&mut page)
        });
    written.expect("memory takes what is written");
    page
}

/// The text after the help. A paragraph with a heading (`Examples:`) and lines that are set in is a section
/// of its own.
fn notes(page: &mut Roff, text: &str) {
    let mut section = String::new();
    for paragraph in text.split("\n\n") {
        let mut lines: Vec<&str> = paragraph.lines().collect();
        let mut heading = "NOTES".to_owned();
        if let [first, second, ..] = lines[..]
            && let Some(title) = first.strip_suffix(':')
            && second.starts_with(' ')
        {
            heading = title.to_uppercase();
            lines.remove(0);
        }
        if heading == section {
            page.control("PP", []);
        } else {
            page.control("SH", [heading.as_str()]);
            section = heading;
        }
        let set_in = lines.first().is_some_and(|line| line.starts_with(' '));
        if set_in {
            page.control("nf", []);
        }
        for line in lines {
            page.text([roman(line)]);
        }
        if set_in {
            page.control("fi", []);
        }
    }
}

fn see_also(page: &mut Roff, above: &[&str]) {
    if !above.is_empty() {
        let names: Vec<String> = above.iter().map(|it| format!("{it}({SECTION})")).collect();
        page.control("SH", ["SEE ALSO"]);
        page.text([roman(names.join(", "))]);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A page as a reader of a terminal of 100 columns sees it, with one blank for several. The oracle is
    /// groff, which is not to warn.
    fn read(name: &str, page: &[u8]) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join(name);
        fs::write(&file, page).expect("is written");
        let output = Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=100n"])
            .arg(&file)
            .output()
            .expect("groff is installed");
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
        let text = String::from_utf8(output.stdout).expect("is text");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(|line| words(line) + "\n").collect()
    }

    #[test]
    fn groff_reads_all_pages() {
        let pages = pages();
        let text = |wanted: &str| {
            let found = pages.iter().find(|(name, _)| name == wanted);
            let (name, page) = found.unwrap_or_else(|| panic!("no {wanted}"));
            read(name, page)
        };
        for (name, page) in &pages {
            let read = read(name, page);
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
                assert!(read.lines().any(|line| line == section), "{name} {section}");
            }
        }
        let whole = text("ibvswitch.1");
        let version = env!("CARGO_PKG_VERSION");
        let footer = format!("ibvswitch {version} ibvswitch(1)\n");
        assert!(whole.ends_with(&footer), "{whole}");
        assert!(
            whole.contains("the IBVSWITCH_CONFIG environment"),
            "{whole}"
        );
        assert!(
            whole.contains("EXIT STATUS\n0 done\n1 the command failed\n"),
            "{whole}"
        );
        assert!(whole.contains("ibvswitch-vf(1)"), "{whole}");
        // `ibvswitch-sm` is a program with a page in section 8.
        assert!(whole.contains("ibvswitch-sm-command(1)"), "{whole}");
        let manager = text("ibvswitch-sm-command.1");
        assert!(manager.contains("SYNOPSIS\nibvswitch sm ["), "{manager}");
        text("ibvswitch-sm-status.1");
        let migrate = text("ibvswitch-vf-migrate.1");
        assert!(
            migrate.contains("NAME\nibvswitch-vf-migrate - "),
            "{migrate}"
        );
        assert!(
            migrate.contains("SYNOPSIS\nibvswitch vf migrate ["),
            "{migrate}"
        );
        assert!(
            migrate.contains("SEE ALSO\nibvswitch(1), ibvswitch-vf(1)\n"),
            "{migrate}"
        );
        let capture = text("ibvswitch-capture.1");
        assert!(
            capture.contains("EXAMPLES\nibvswitch capture | tshark -r -\n"),
            "{capture}"
        );
    }

    #[test]
    fn hidden_commands_have_no_page() {
        let names: Vec<String> = pages().into_iter().map(|(name, _)| name).collect();
        assert!(
            names.iter().all(|name| !name.contains("keeper")),
            "{names:?}"
        );
        assert!(names.contains(&"ibvswitch-man.1".to_owned()), "{names:?}");
    }
}
