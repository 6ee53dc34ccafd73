//! Files, network and signals: Landlock.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use super::Needs;
use crate::control::Landlock;

/// Version of the interface, whose rights are all confined. Older kernels know a part of them.
const FILES: ABI = ABI::V5;

/// Confines this thread, and those that it starts, to `needs`. It has no TCP, and signals nobody
/// who is not confined with it.
pub(super) fn enter(needs: &Needs) -> Result<Landlock, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let own = AccessFs::from_all(FILES)
        & !(AccessFs::Execute
            | AccessFs::MakeBlock
            | AccessFs::MakeChar
            | AccessFs::IoctlDev
            | AccessFs::MakeSym);
    let sockets = AccessFs::MakeSock | AccessFs::RemoveFile;
    let devices = read | AccessFs::WriteFile | AccessFs::IoctlDev;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(FILES))?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(beneath(&needs.programs, read | AccessFs::Execute))?
        .add_rules(beneath(&needs.read, read))?
        .add_rules(beneath(&needs.own, own))?
        .add_rules(beneath(&needs.sockets, sockets))?
        .add_rules(beneath(&needs.devices, devices))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Landlock::Full,
        RulesetStatus::PartiallyEnforced => Landlock::Partial,
        RulesetStatus::NotEnforced => Landlock::None,
    })
}

fn beneath(
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<PathBeneath<PathFd>, RulesetError>> {
    // The whole system is nobody's own directory: a file in `/` is named alone.
    let paths = paths.iter().filter(|path| path.as_path() != Path::new("/"));
    path_beneath_rules(paths, access)
}
