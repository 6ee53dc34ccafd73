//! Child processes that never outlive this one, however it ends, and the words before their names.

use std::process::Command;

/// The same command, with the kernel told to kill the process when the thread that started it
/// ends (PR_SET_PDEATHSIG of prctl(2), set by setpriv(1)). Its process number is that of the
/// program itself: setpriv becomes the program.
pub fn bound(command: &Command) -> Command {
    behind(&["setpriv", "--pdeathsig", "KILL", "--"], command)
}

/// The same command behind these words, of which the first is a program that becomes the command's.
pub fn behind<S: AsRef<str>>(words: &[S], command: &Command) -> Command {
    let program = command.get_program();
    let mut behind = match words {
        [first, others @ ..] => {
            let mut behind = Command::new(first.as_ref());
            behind.args(others.iter().map(AsRef::as_ref)).arg(program);
            behind
        }
        [] => Command::new(program),
    };
    behind.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => behind.env(name, value),
            None => behind.env_remove(name),
        };
    }
    behind
}
