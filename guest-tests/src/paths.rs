//! Where things are kept.
//!
//! Everything fetched or built for the guests lies in one cache folder: `$IBVSWITCH_CACHE`, or
//! `.cache` at the root of the workspace (git ignores it). Each thing in it is made in a
//! temporary folder and renamed into place when it is whole, so an interrupted run leaves nothing
//! half-made behind that a later one would take for complete.

use std::{
    env, fs,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

use crate::error::{Doing, Result};

/// The root of the workspace this program was built from.
pub fn workspace() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.parent().unwrap_or(crate_dir).to_owned()
}

/// The cache folder; created when missing.
pub fn cache() -> Result<PathBuf> {
    let dir = match env::var_os("IBVSWITCH_CACHE") {
        Some(dir) => PathBuf::from(dir),
        None => workspace().join(".cache"),
    };
    fs::create_dir_all(&dir).at("create", &dir)?;
    Ok(dir)
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
/// part of `name` before its last `-`) with another key are outdated and are removed.
pub fn cached(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = cache()?;
    let done = cache.join(name);
    if done.is_dir() {
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
        if other.rsplit_once('-').is_some_and(|(f, _)| f == family) {
            remove(&entry.path())?;
        }
    }
    fs::rename(&partial, &done).at("rename to", &done)?;
    Ok(done)
}

/// Removes a folder with all it holds; it is no error if it is not there.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).at("remove", dir),
        _ => Ok(()),
    }
}
