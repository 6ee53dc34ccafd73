//! Child processes that never outlive this one, however it ends.

use std::process::Command;

/// The same command, with the kernel told to kill the process when the thread that started it
/// ends (PR_SET_PDEATHSIG of prctl(2), set by setpriv(1)). Its process number is that of the
/// program itself: setpriv becomes the program.
pub fn bound(command: &Command) -> Command {
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL", "--"]);
    bound.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    bound
}
