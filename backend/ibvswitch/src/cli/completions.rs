//! `ibvswitch completions`

use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::{generate, shells};

use super::{Cli, CliError, print};

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Where a shell looks for them:

  ibvswitch completions bash > /usr/share/bash-completion/completions/ibvswitch
  ibvswitch completions zsh > /usr/local/share/zsh/site-functions/_ibvswitch
  ibvswitch completions fish > /usr/share/fish/vendor_completions.d/ibvswitch.fish

In a running bash: source <(ibvswitch completions bash)")]
pub(super) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// A shell that completes commands by a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<(), CliError> {
    print(script(args.shell))
}

fn script(shell: Shell) -> String {
    let mut command = shown(&Cli::command());
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    match shell {
        Shell::Bash => generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => generate(shells::Fish, &mut command, name, &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns a command as users see it, without hidden commands and options: scripts would complete these as well.
fn shown(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(command.get_name().to_owned())
        .args(arguments.cloned())
        .subcommands(commands.map(shown));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    /// Returns the completions that bash offers for a line with the cursor at its end. The oracle is bash.
    fn offered(line: &[&str]) -> Vec<String> {
        let script = "
            source /dev/stdin
            COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))
            _ibvswitch ibvswitch \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
            printf '%s\\n' \"${COMPREPLY[@]}\"";
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ibvswitch");
        std::fs::write(&file, super::script(Shell::Bash)).expect("is written");
        let output = process::Command::new("bash")
            .args(["--norc", "-uc", script, "bash"])
            .args(line)
            .stdin(std::fs::File::open(&file).expect("is readable"))
            .output()
            .expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line:?}");
        let offered = String::from_utf8(output.stdout).expect("is text");
        offered.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_commands_options_and_values() {
        assert_eq!(offered(&["ibvswitch", "sta"]), ["status"]);
        assert_eq!(offered(&["ibvswitch", "vf", "mi"]), ["migrate"]);
        assert_eq!(
            offered(&["ibvswitch", "vf", "migrate", "--de"]),
            ["--destination-routed"]
        );
        assert_eq!(
            offered(&["ibvswitch", "topology", "--format", ""]),
            ["text", "dot", "svg", "json", "ibnetdiscover"]
        );
        // An option of the whole before the command does not hide what may follow.
        let options = ["ibvswitch", "--config", "x.toml", "sm", "status", "--js"];
        assert_eq!(offered(&options), ["--json"]);
    }

    /// Every command that is not hidden, and no other.
    #[test]
    fn bash_offers_what_the_help_shows() {
        fn check(command: &Command, line: &[&str]) {
            let offered = offered(&[line, &[""]].concat());
            for sub in command.get_subcommands() {
                let name = sub.get_name().to_owned();
                assert_eq!(
                    offered.contains(&name),
                    !sub.is_hide_set(),
                    "{line:?} {name}"
                );
                if sub.has_subcommands() {
                    check(sub, &[line, &[sub.get_name()]].concat());
                }
            }
            for option in command.get_arguments() {
                let Some(long) = option.get_long() else {
                    continue;
                };
                let name = format!("--{long}");
                assert_eq!(
                    offered.contains(&name),
                    !option.is_hide_set(),
                    "{line:?} {name}"
                );
            }
        }
        let command = Cli::command();
        check(&command, &["ibvswitch"]);
        let run = command.find_subcommand("run").expect("is there");
        check(run, &["ibvswitch", "run"]);
    }
}
