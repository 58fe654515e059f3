//! Record of the server that has a data folder open, by which commands find it.
//!
//! A server at the configured address may serve another folder. So commands ask the server that the folder names, and
//! compare what it says of itself. The file `towpath.server` in the data folder has three lines: the process, the URL,
//! and the instance, which `/feeds?instance` shows.

use std::fs;
use std::io;
use std::path::Path;

use towpath_store::embedded::holder;

use crate::engine::Engine;

const FILE: &str = "towpath.server";

/// Server that has a data folder open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunningServer {
    /// Id of its process.
    pub(super) process: String,
    /// URL that this machine reaches it at.
    pub(super) url: String,
    /// Identity of this run.
    pub(super) instance: String,
}

/// Process that has a data folder open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FolderUser {
    /// Nobody: the folder can be opened.
    Nobody,
    /// A server.
    Server(RunningServer),
    /// Another command, or a server of an earlier version; its process id, if it is known.
    Process(String),
}

/// Returns who has a data folder open.
pub(super) fn user_of(folder: &Path) -> FolderUser {
    let Some(process) = holder(folder) else { return FolderUser::Nobody };
    let text = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
    match text.lines().collect::<Vec<_>>()[..] {
        // A server that was killed leaves its record behind.
        [id, url, instance] if id == process => {
            let (url, instance) = (url.to_owned(), instance.to_owned());
            FolderUser::Server(RunningServer { process, url, instance })
        }
        _ => FolderUser::Process(process),
    }
}

/// Records that this process serves its data folder.
pub(super) fn record(engine: &Engine) -> io::Result<()> {
    let server = &engine.config.server;
    let text = format!("{}\n{}\n{}\n", std::process::id(), engine.config.local_url(), engine.instance);
    // In one step: a command must not read half of it.
    let new = server.data.join(format!("{FILE}.new"));
    fs::write(&new, text)?;
    fs::rename(new, server.data.join(FILE))
}

/// Removes the record, once nothing is served any more.
pub(super) fn forget(engine: &Engine) {
    // What stays behind names a process that does not have the folder open.
    drop(fs::remove_file(engine.config.server.data.join(FILE)));
}
