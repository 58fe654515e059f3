//! Permissions of the files that this process creates: for its user only, except in exported trees.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::Mode;

/// The user's own umask, once [`restrict`] has replaced it.
static USERS_UMASK: OnceLock<u32> = OnceLock::new();

/// Has this process create files and folders for its user only.
///
/// A umask reaches every file, also those that the storage engine creates while it runs. Data folders hold items of
/// private feeds, subscribers' secrets and signed URLs.
pub(crate) fn restrict() {
    let users = rustix::process::umask(Mode::from_raw_mode(0o077));
    #[allow(clippy::useless_conversion, reason = "the type is narrower on other systems")]
    let _ = USERS_UMASK.set(users.bits().into());
}

/// Gives a file that others are to read, such as one of an exported tree, the permissions of the user's own umask.
pub(crate) fn publish(file: &File) -> io::Result<()> {
    match USERS_UMASK.get() {
        Some(umask) => file.set_permissions(Permissions::from_mode(0o666 & !umask)),
        None => Ok(()),
    }
}

/// Creates a folder that others are to read, and its missing parents, with the permissions of the user's own umask.
pub(crate) fn create_public_folders(path: &Path) -> io::Result<()> {
    let Some(umask) = USERS_UMASK.get() else { return fs::create_dir_all(path) };
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
        create_public_folders(parent)?;
    }
    let mode = 0o777 & !umask;
    match fs::DirBuilder::new().mode(mode).create(path) {
        // The process's own umask has cut the mode.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(e),
    }
}
