//! Where things are kept.
//!
//! Everything fetched or built for guests lies in one cache folder: `$IBVSWITCH_CACHE`, or `.cache` at the
//! root of the workspace that this program was built from (git ignores it), or, where there is no such
//! workspace, `ibvswitch` in the user's own cache. Each thing in it is made in a
//! temporary folder and renamed into place when it is whole, so an interrupted run leaves nothing
//! half-made behind that a later one would take for complete.

use std::{
    env, fs,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::error::{Doing, Error, Result};

/// Time after which an unused item is removed when another of its family is made.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The cache folder; created when missing.
pub fn cache() -> Result<PathBuf> {
    let dir = place().ok_or_else(|| {
        Error::Host(
            "there is no place for what is fetched: neither IBVSWITCH_CACHE nor HOME is set; set one".into(),
        )
    })?;
    fs::create_dir_all(&dir).at("create", &dir)?;
    Ok(dir)
}

fn place() -> Option<PathBuf> {
    if let Some(dir) = env::var_os("IBVSWITCH_CACHE") {
        return Some(dir.into());
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    if workspace.join("Cargo.toml").is_file() {
        return Some(workspace.join(".cache"));
    }
    let users = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let users = users.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache")))?;
    Some(users.join("ibvswitch"))
}

/// A key of everything that `recipe` says, for the name of a cached folder.
pub fn key(recipe: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The folder `name` of the cache, made by `make` if it is not there yet.
///
/// `make` fills a temporary folder, which then gets the name. Two processes that want the same
/// folder at the same time take turns; the second finds it made. Folders of the same family (the
/// part of `name` before its last `-`) with another key are removed, but for those of which somebody
/// has made use within a week: another version of this program, or a guest that runs.
pub fn cached(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = cache()?;
    let done = cache.join(name);
    if done.is_dir() {
        used(&done);
        return Ok(done);
    }
    let family = name.rsplit_once('-').map_or(name, |(family, _key)| family);
    let lock_path = cache.join(format!("{family}.lock"));
    let lock = File::create(&lock_path).at("create", &lock_path)?;
    lock.lock().at("lock", &lock_path)?;
    if done.is_dir() {
        return Ok(done);
    }
    let partial = cache.join(format!("{family}.partial"));
    remove(&partial)?;
    fs::create_dir_all(&partial).at("create", &partial)?;
    make(&partial)?;
    for entry in fs::read_dir(&cache).at("read", &cache)?.flatten() {
        let other = entry.file_name();
        let other = other.to_string_lossy();
        let ours = other.rsplit_once('-').is_some_and(|(f, _)| f == family);
        if ours && outdated(&entry.path()) {
            remove(&entry.path())?;
        }
    }
    fs::rename(&partial, &done).at("rename to", &done)?;
    Ok(done)
}

/// Notes that a folder is in use.
fn used(dir: &Path) {
    // In a cache that is another user's it may be forbidden, and is that user's to note.
    if let Ok(dir) = File::open(dir) {
        let _ = dir.set_modified(SystemTime::now());
    }
}

fn outdated(dir: &Path) -> bool {
    let used = fs::metadata(dir).and_then(|it| it.modified());
    // A time to come is of a clock that was set.
    used.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT))
}

/// Removes a folder with all it holds; it is no error if it is not there.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).at("remove", dir),
        _ => Ok(()),
    }
}
