//! Permissions of a data folder: its user's only. It holds items of private feeds, and subscribers' secrets.

use std::fs;
use std::io;
use std::path::Path;

/// Permissions of the group and of others.
#[cfg(unix)]
const OTHERS: u32 = 0o077;

/// Creates a folder for its user only, if it is missing. Missing parents have the usual permissions.
pub(super) fn create(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut folder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    match folder.create(path) {
        // Another process was quicker.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        created => created,
    }
}

/// Takes the permissions of other users from a folder and all that is in it, and logs that.
///
/// New files get theirs from the process's umask. Without the folder's own permissions they are out of reach anyway.
#[cfg(unix)]
pub(super) fn restrict(path: &Path) {
    let mut changed = 0;
    match restrict_all(path, &mut changed) {
        Ok(()) if changed > 0 => {
            tracing::info!(folder = %path.display(), files = changed, "other users could read the data folder; now they cannot");
        }
        Ok(()) => {}
        // Such as a folder of another owner, or a file system without permissions: serving goes on.
        Err(e) => tracing::warn!(
            folder = %path.display(),
            error = %e,
            "other users may be able to read the data folder; allow only this user to (chmod -R go= on the folder)"
        ),
    }
}

#[cfg(not(unix))]
pub(super) fn restrict(_path: &Path) {}

#[cfg(unix)]
fn restrict_all(path: &Path, changed: &mut usize) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    let facts = fs::metadata(path)?;
    let mode = facts.permissions().mode();
    if mode & OTHERS != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777 & !OTHERS))?;
        *changed += 1;
    }
    if !facts.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // A link may lead out of the folder, to files that are not ours.
        if !entry.file_type()?.is_symlink() {
            restrict_all(&entry.path(), changed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_folders_own_files_are_restricted() {
        let place = tempfile::tempdir().unwrap();
        let (data, outside) = (place.path().join("new/data"), place.path().join("outside"));
        create(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
        create(&data).unwrap();
        fs::write(&outside, "x").unwrap();
        fs::create_dir(data.join("engine")).unwrap();
        fs::write(data.join("engine/table"), "x").unwrap();
        symlink(&outside, data.join("link")).unwrap();
        for (path, open) in
            [(&data, 0o755), (&data.join("engine"), 0o775), (&data.join("engine/table"), 0o644)]
        {
            fs::set_permissions(path, fs::Permissions::from_mode(open)).unwrap();
        }
        let before = mode(&outside);
        restrict(&data);
        let modes = ["", "engine", "engine/table"].map(|name| mode(&data.join(name)));
        assert_eq!((modes, mode(&outside)), ([0o700, 0o700, 0o600], before));
    }
}
