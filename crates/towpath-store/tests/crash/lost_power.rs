//! Lost power: a writer's system calls are recorded, from an empty folder and from what that run left. At moments of the
//! recordings, a new store reads a disk that forgets what was not synced. It must have every write that was acknowledged
//! by then.
//!
//! `cargo xtask lost-power` takes every write, sync, rename and removal; a test takes a part of them.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;

use crate::disk::{Disk, NodeId, ROOT, Remains};
use crate::ledger::CrashLedger;
use crate::trace::{Call, Moment};
use crate::{trace, writer};

/// Runs of the writer in one folder, writes of each, and moments at which the power is lost.
const RUNS: usize = 2;
const WRITES: u32 = 160;
const MOMENTS: usize = 20;

/// Returns true if system calls can be recorded on this machine, which containers may forbid.
pub(crate) fn can_trace() -> bool {
    let probe = std::process::Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    let can = probe.is_ok_and(|output| output.status.success());
    assert!(can || std::env::var_os("REQUIRE_STRACE").is_none(), "strace does not work");
    can
}

/// An open file.
#[derive(Debug, Clone)]
struct OpenFile {
    node: NodeId,
    offset: usize,
    appends: bool,
}

/// Replays a recording on a disk.
struct Replay<'f> {
    folder: &'f str,
    disk: Disk,
    /// Open files below the folder, by descriptor.
    files: HashMap<i64, OpenFile>,
    begun: HashMap<usize, Call>,
    output: Vec<u8>,
}

impl<'f> Replay<'f> {
    fn new(folder: &'f str) -> Self {
        Self { folder, disk: Disk::new(), files: HashMap::new(), begun: HashMap::new(), output: Vec::new() }
    }

    /// Begins the recording of another process in the folder.
    fn begin_run(&mut self) {
        self.files.clear();
        self.begun.clear();
        self.output.push(b'\n');
    }

    /// Applies a moment; returns true if it changed what a lost power leaves.
    fn apply(&mut self, moment: Moment) -> bool {
        match moment {
            Moment::Begin(number, call) => {
                if matches!(&*call.name, "write" | "writev") && call.arguments[0] == "1" {
                    self.output.extend(call.texts.concat());
                }
                self.begun.insert(number, call);
                false
            }
            Moment::End(number, result) => {
                let call = self.begun.remove(&number).unwrap();
                self.end(&call, result)
            }
        }
    }

    fn end(&mut self, call: &Call, result: i64) -> bool {
        let text = |n: usize| String::from_utf8(call.texts[n].clone()).unwrap();
        let number = |n: usize| call.arguments[n].parse::<i64>().unwrap();
        match &*call.name {
            "open" | "creat" | "openat" => return self.open(call, result),
            "close" => drop(self.files.remove(&number(0))),
            "dup" | "dup2" | "dup3" => self.duplicate(number(0), result),
            "fcntl" if call.arguments[1].starts_with("F_DUPFD") => self.duplicate(number(0), result),
            "fcntl" => {}
            "lseek" => self.at(number(0), |file, _| file.offset = usize::try_from(result).unwrap()),
            "read" | "readv" => {
                self.at(number(0), |file, _| file.offset += usize::try_from(result).unwrap());
            }
            "write" | "writev" | "pwrite64" => {
                let written = usize::try_from(result).unwrap();
                let bytes = call.texts.concat();
                let place = (call.name == "pwrite64").then(|| usize::try_from(number(3)).unwrap());
                let Some(file) = self.files.get_mut(&number(0)) else { return false };
                let end = self.disk.len(file.node);
                let offset = place.unwrap_or(if file.appends { end } else { file.offset });
                self.disk.write(file.node, offset, &bytes[..written]);
                if place.is_none() {
                    file.offset = offset + written;
                }
                return true;
            }
            "ftruncate" => {
                let len = usize::try_from(number(1)).unwrap();
                self.at(number(0), |file, disk| disk.set_len(file.node, len));
                return self.files.contains_key(&number(0));
            }
            "fsync" | "fdatasync" => {
                self.at(number(0), |file, disk| disk.sync(file.node));
                return self.files.contains_key(&number(0));
            }
            "mkdir" | "mkdirat" => {
                return self.on_path(call, |disk, from, path| {
                    disk.create(from, path, true);
                });
            }
            "unlink" | "unlinkat" | "rmdir" => return self.on_path(call, Disk::remove),
            "rename" | "renameat" | "renameat2" => {
                assert!(text(0).starts_with('/') && text(1).starts_with('/'), "{call:?}");
                return self.rename(&text(0), &text(1));
            }
            // Whoever maps files to write them would be missed.
            "mmap" => {
                let is_write =
                    call.arguments[2].contains("PROT_WRITE") && call.arguments[3].contains("MAP_SHARED");
                let is_ours = call.arguments[4].parse().is_ok_and(|fd: i64| self.files.contains_key(&fd));
                assert!(!(is_write && is_ours), "{call:?}");
            }
            _ => assert!(
                !call.arguments[0].parse().is_ok_and(|fd: i64| self.files.contains_key(&fd)),
                "the disk knows no {call:?}"
            ),
        }
        false
    }

    fn at(&mut self, descriptor: i64, change: impl FnOnce(&mut OpenFile, &mut Disk)) {
        if let Some(file) = self.files.get_mut(&descriptor) {
            change(file, &mut self.disk);
        }
    }

    fn duplicate(&mut self, old: i64, new: i64) {
        if let Some(file) = self.files.get(&old).cloned() {
            self.files.insert(new, file);
        }
    }

    /// Returns the directory that a path begins at, and the path from there; `None` outside of the folder.
    fn place(&self, call: &Call) -> Option<(NodeId, String)> {
        let path = String::from_utf8(call.texts[0].clone()).unwrap();
        if path.starts_with('/') {
            return path.strip_prefix(self.folder).map(|path| (ROOT, path.to_owned()));
        }
        let from = call.arguments[0].parse::<i64>().ok()?;
        self.files.get(&from).map(|file| (file.node, path))
    }

    fn on_path(&mut self, call: &Call, change: impl FnOnce(&mut Disk, NodeId, &str)) -> bool {
        let Some((from, path)) = self.place(call).filter(|(_, path)| !path.trim_matches('/').is_empty())
        else {
            return false;
        };
        change(&mut self.disk, from, &path);
        true
    }

    fn open(&mut self, call: &Call, descriptor: i64) -> bool {
        // A descriptor that closed without a recorded call, as that of a file of another process.
        self.files.remove(&descriptor);
        let Some((from, path)) = self.place(call) else { return false };
        let flags = call.arguments.iter().find(|argument| argument.contains("O_")).unwrap();
        assert!(!flags.contains("SYNC"), "{call:?}");
        let known = self.disk.find(from, &path);
        let node = known.unwrap_or_else(|| self.disk.create(from, &path, false));
        let shortens = flags.contains("O_TRUNC") && self.disk.len(node) > 0;
        if shortens {
            self.disk.set_len(node, 0);
        }
        self.files.insert(descriptor, OpenFile { node, offset: 0, appends: flags.contains("O_APPEND") });
        known.is_none() || shortens
    }

    fn rename(&mut self, old: &str, new: &str) -> bool {
        let (Some(old), Some(new)) = (old.strip_prefix(self.folder), new.strip_prefix(self.folder)) else {
            return false;
        };
        self.disk.rename((ROOT, old), (ROOT, new));
        true
    }
}

/// Records a writer in a folder, and returns the recording.
fn record(folder: &Path, writes: u32) -> Vec<Moment> {
    let file = folder.with_extension("trace");
    let recorder = trace::recorder(file.to_str().unwrap());
    let output = writer::command(&recorder, folder, Some(writes)).stdout(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    trace::read(&std::fs::read_to_string(file).unwrap())
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_with_the_power() {
    if !can_trace() {
        eprintln!("left out: strace does not work here");
        return;
    }
    let (is_all, seed) = (std::env::var_os("TOWPATH_LOST_POWER").is_some(), fastrand::u64(..));
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    // In memory where that can be: the stores that are opened write and sync much.
    let memory = Path::new("/dev/shm");
    let scratch = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let folder = scratch.path().join("data");
    std::fs::create_dir(&folder).unwrap();
    let runs: Vec<Vec<Moment>> = (0..RUNS).map(|_| record(&folder, WRITES)).collect();
    let name = folder.to_str().unwrap();
    let count = changes(name, &runs);
    let wanted = |at: usize, rng: &mut fastrand::Rng| is_all || at == count || rng.usize(..count) < MOMENTS;
    let (mut replay, mut at, mut lost) = (Replay::new(name), 0, 0);
    for run in runs {
        replay.begin_run();
        for moment in run {
            if !replay.apply(moment) {
                continue;
            }
            at += 1;
            if wanted(at, &mut rng) {
                for remains in [Remains::Nothing, Remains::Zeros, Remains::Part(rng.fork())] {
                    check(&replay, remains, &scratch.path().join("after"), at).await;
                    lost += 1;
                }
            }
        }
    }
    println!("power lost {lost} times, at {count} changes of the disk: nothing acknowledged is missing");
    assert!(count > 300 && lost >= 3, "{count} changes, {lost} losses");
}

/// Returns the number of moments of the recordings that change the disk.
fn changes(folder: &str, runs: &[Vec<Moment>]) -> usize {
    let mut replay = Replay::new(folder);
    let mut count = |run: &Vec<Moment>| {
        replay.begin_run();
        run.iter().filter(|moment| replay.apply((*moment).clone())).count()
    };
    runs.iter().map(&mut count).sum()
}

/// Loses the power, and opens what is left.
async fn check(replay: &Replay<'_>, mut remains: Remains, folder: &Path, at: usize) {
    if folder.exists() {
        std::fs::remove_dir_all(folder).unwrap();
    }
    println!("change {at}, {remains:?}, unsynced:\n{}", replay.disk.unsynced());
    replay.disk.lose_power(&mut remains, folder);
    let mut ledger = CrashLedger::default();
    ledger.add_output(&replay.output);
    ledger.check(folder).await;
}
