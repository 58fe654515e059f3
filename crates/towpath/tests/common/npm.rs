//! Scripts below `tests/foreign` that use packages of `tests/feed-readers`.

use std::path::Path;
use std::process::Command;

/// A script in a folder of its own, from which it finds the packages.
pub struct NpmScript {
    folder: tempfile::TempDir,
    name: &'static str,
}

impl NpmScript {
    pub fn new(name: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let packages = super::npm_packages().join("node_modules");
        std::os::unix::fs::symlink(packages, folder.path().join("node_modules")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(name);
        std::fs::copy(script, folder.path().join(name)).unwrap();
        Self { folder, name }
    }

    /// Command that runs it; arguments may follow.
    pub fn command(&self) -> Command {
        let mut command = Command::new("node");
        command.arg(self.folder.path().join(self.name));
        command
    }
}
