//! Replicas without a server: histories of messages, snapshots on the way, and messages of earlier versions.

use std::path::Path;

use jiff::Timestamp;
use proptest::prelude::*;
use tokio::sync::Semaphore;
use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_store::backup::{BackupStorage, MemoryStorage};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, Precondition, Store as _, Table, TableWrite};

use super::*;
use crate::level::SUPPORTED;

const LOG: LogId = 77;

/// Message as the stream has it.
#[derive(Debug, Clone)]
struct StoredMessage {
    at: u64,
    time: u64,
    payload: Vec<u8>,
}

/// Replica in a folder, and the thread's part of its node.
struct TestReplica {
    reader: EmbeddedStore,
    applier: Applier,
}

impl TestReplica {
    fn open(folder: &Path, log: LogId) -> Self {
        let options = EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() };
        let (reader, replica) = EmbeddedStore::open_replica(folder, &options).unwrap();
        let (position, sessions) = checkpoint::load(&replica).unwrap();
        let position = position.unwrap_or(ReplicaPosition { log, at: 0, mark: None });
        let applier = Applier {
            closing: Arc::default(),
            replica,
            position,
            sessions,
            own_session: Arc::default(),
            events: mpsc::unbounded_channel().0,
            health: Arc::new(NodeHealth::new(position.at, position.mark)),
            supported: SUPPORTED,
        };
        Self { reader, applier }
    }

    /// Applies messages after the replica's position, in groups of a size.
    fn apply(&mut self, messages: &[StoredMessage], group: usize) {
        let position = self.applier.position.at;
        let new: Vec<_> = messages.iter().filter(|message| message.at > position).collect();
        for group in new.chunks(group) {
            let group = group.iter().map(|message| {
                let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
                let StoredMessage { at, time, payload } = (*message).clone();
                LogMessage::decode(at, time, payload.into(), SUPPORTED, permit)
            });
            self.applier.apply(group.collect()).unwrap();
        }
    }

    fn digest(&self) -> [u8; 32] {
        self.reader.copy_now().unwrap().digest().unwrap()
    }

    async fn close(self) {
        drop(self.applier);
        self.reader.close().await;
    }
}

/// Next step of a producer.
#[derive(Debug, Clone)]
enum Action {
    /// Appends items to a feed, perhaps with an expected head.
    Append {
        session: u8,
        feed: u8,
        id: u8,
        size: usize,
        expected: Option<u64>,
    },
    Delete {
        session: u8,
        feed: u8,
        id: u8,
    },
    /// Writes a row, if the row has a value.
    Write {
        session: u8,
        key: u8,
        value: Option<u8>,
        expected: Option<u8>,
    },
    /// Appends an item in parts, of which the last one may be missing.
    Parts {
        session: u8,
        id: u8,
        parts: u32,
        is_whole: bool,
    },
    /// Publishes an earlier message again.
    Repeat {
        of: prop::sample::Index,
    },
    /// Loses a message, so that later ones of the session have a gap before them.
    Lose {
        session: u8,
    },
    Raise {
        session: u8,
        level: u8,
    },
    /// Begins a session anew: the node was started again.
    Restart {
        session: u8,
    },
    Foreign {
        bytes: Vec<u8>,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let session = 0..3u8;
    let append = (0..3u8, 0..6u8, 1..400usize, prop::option::weighted(0.3, 0..8u64));
    prop_oneof![
        8 => (session.clone(), append).prop_map(|(session, (feed, id, size, expected))| Action::Append { session, feed, id, size, expected }),
        2 => (session.clone(), 0..3u8, 0..6u8).prop_map(|(session, feed, id)| Action::Delete { session, feed, id }),
        4 => (session.clone(), 0..4u8, any::<Option<u8>>(), prop::option::weighted(0.3, any::<u8>()))
            .prop_map(|(session, key, value, expected)| Action::Write { session, key, value, expected }),
        3 => (session.clone(), 0..6u8, 2..5u32, any::<bool>()).prop_map(|(session, id, parts, is_whole)| Action::Parts { session, id, parts, is_whole }),
        2 => any::<prop::sample::Index>().prop_map(|of| Action::Repeat { of }),
        1 => session.clone().prop_map(|session| Action::Lose { session }),
        1 => (session.clone(), 1..=SUPPORTED).prop_map(|(session, level)| Action::Raise { session, level }),
        1 => session.prop_map(|session| Action::Restart { session }),
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| Action::Foreign { bytes }),
    ]
}

/// Stream to which producers publish, without a network.
#[derive(Default)]
struct TestStream {
    messages: Vec<StoredMessage>,
    /// Sessions of the producers, with the number of their last message.
    sessions: HashMap<u8, (SessionId, u64)>,
    started: u64,
}

impl TestStream {
    fn publish(&mut self, payload: Vec<u8>) {
        let at = self.messages.len() as u64 + 1;
        self.messages.push(StoredMessage { at, time: at * 1_000_000, payload });
    }

    fn next(&mut self, producer: u8) -> (SessionId, u64) {
        let started = &mut self.started;
        let (session, number) = self.sessions.entry(producer).or_insert_with(|| {
            *started += 1;
            (*started, 0)
        });
        *number += 1;
        (*session, *number)
    }

    fn send(&mut self, producer: u8, level: u8, payload: PayloadKind, parts: u32, body: &[u8]) {
        let (session, number) = self.next(producer);
        let now = Timestamp::from_second(self.messages.len() as i64 * 3 % 50).unwrap();
        let header = FrameHeader { level, log: LOG, session, number, attempt: 0, now, payload, parts };
        self.publish([&header.encode()[..], body].concat());
    }

    fn command(&mut self, producer: u8, command: &LogCommand) {
        let mut body = Vec::new();
        command.encode(&mut body);
        self.send(producer, command.level(), PayloadKind::Commands, 0, &body);
    }

    fn act(&mut self, action: Action) {
        let feed = |feed: u8| FeedId::new(&format!("f{feed}")).unwrap();
        let put = |id: u8, size: usize| {
            let content = Some(Content::new("text/plain", "x".repeat(size)));
            vec![NewChange::put(Item { content, ..Item::new(id.to_string()) })]
        };
        match action {
            Action::Append { session, feed: name, id, size, expected } => {
                let expected = expected.map_or(Expected::Any, Expected::Last);
                self.command(session, &LogCommand::append(&feed(name), expected, put(id, size)).unwrap());
            }
            Action::Delete { session, feed: name, id } => {
                let delete = vec![NewChange::delete(id.to_string())];
                self.command(session, &LogCommand::append(&feed(name), Expected::Any, delete).unwrap());
            }
            Action::Write { session, key, value, expected } => {
                let (table, key) = (if key % 2 == 0 { Table::Leases } else { Table::Documents }, vec![key]);
                let bytes = |value: u8| Bytes::from(vec![value; 40]);
                let condition =
                    |expected| Precondition { table, key: key.clone(), value: Some(bytes(expected)) };
                let expected = expected.map(condition);
                let write = TableWrite { table, key: key.clone(), value: value.map(bytes) };
                self.command(
                    session,
                    &LogCommand::write(vec![write], expected.into_iter().collect()).unwrap(),
                );
            }
            Action::Parts { session, id, parts, is_whole } => {
                let mut body = Vec::new();
                LogCommand::append(&feed(9), Expected::Any, put(id, 900)).unwrap().encode(&mut body);
                let pieces: Vec<_> = body.chunks(body.len().div_ceil(parts as usize)).collect();
                for (number, piece) in (0..).zip(&pieces) {
                    let is_last = number as usize + 1 == pieces.len();
                    if !is_last || is_whole {
                        let kind = if is_last { PayloadKind::LastPart } else { PayloadKind::Part };
                        self.send(session, 1, kind, number, piece);
                    }
                }
            }
            Action::Repeat { of } => {
                if !self.messages.is_empty() {
                    let copy = self.messages[of.index(self.messages.len())].payload.clone();
                    self.publish(copy);
                }
            }
            Action::Lose { session } => drop(self.next(session)),
            Action::Raise { session, level } => self.command(session, &LogCommand::raise_level(level)),
            Action::Restart { session } => drop(self.sessions.remove(&session)),
            Action::Foreign { bytes } => self.publish(bytes),
        }
    }
}

/// Number of random histories. Each opens four folders, with their syncs; `TOWPATH_HISTORIES` sets more.
fn histories() -> u32 {
    std::env::var("TOWPATH_HISTORIES").ok().and_then(|number| number.parse().ok()).unwrap_or(3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(histories()))]

    /// A replica that begins from a snapshot, taken anywhere, equals one of the whole log, byte by byte: also within a
    /// command of many parts, and with copies of messages from before the snapshot after it.
    #[test]
    fn a_snapshot_and_what_follows_equal_the_whole_log(
        actions in prop::collection::vec(action(), 1..60),
        cut in any::<prop::sample::Index>(),
        groups in (1..9usize, 1..9usize, 1..9usize),
    ) {
        let mut stream = TestStream::default();
        actions.into_iter().for_each(|action| stream.act(action));
        let cut = cut.index(stream.messages.len() + 1);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let folders = tempfile::tempdir().unwrap();
        let mut whole = TestReplica::open(&folders.path().join("whole"), LOG);
        whole.apply(&stream.messages, groups.0);
        let mut copied = TestReplica::open(&folders.path().join("copied"), LOG);
        copied.apply(&stream.messages[..cut], groups.1);
        // A replica without a message has no position, and nothing to begin from.
        prop_assume!(cut > 0);
        let storage: Arc<dyn BackupStorage> = Arc::new(MemoryStorage::default());
        let written = runtime.block_on(crate::snapshots::write(&copied.reader, &storage, Timestamp::UNIX_EPOCH)).unwrap();
        prop_assert_eq!(written.manifest.log.unwrap().sequence, cut as u64);
        // The folder holds an older replica, which goes.
        let path = folders.path().join("begun");
        let mut old = TestReplica::open(&path, LOG);
        old.apply(&stream.messages[..cut / 2], 1);
        runtime.block_on(old.close());
        let handle = runtime.handle().clone();
        crate::snapshots::replace(&handle, storage.as_ref(), &written.manifest, &path).unwrap();
        let mut begun = TestReplica::open(&path, LOG);
        prop_assert_eq!(begun.digest(), copied.digest());
        begun.apply(&stream.messages, groups.2);
        prop_assert_eq!(begun.applier.position, whole.applier.position);
        prop_assert_eq!(&begun.applier.sessions, &whole.applier.sessions);
        prop_assert_eq!(begun.digest(), whole.digest());
        prop_assert!(runtime.block_on(begun.reader.verify()).unwrap().is_sound());
        for replica in [whole, copied, begun] {
            runtime.block_on(replica.close());
        }
    }
}

/// Messages of the level before, and what a node of that version made of them: this version makes the same.
///
/// `cargo xtask mixed-versions record` writes both.
#[tokio::test]
async fn messages_of_the_previous_version_have_the_same_effect() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let facts = std::fs::read_to_string(data.join("level-1.digest")).unwrap();
    let fact =
        |name: &str| facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    let log = LogId::from_str_radix(fact("log"), 16).unwrap();
    let recorded = std::fs::read(data.join("level-1.messages")).unwrap();
    let mut rest = recorded.as_slice();
    let mut messages = Vec::new();
    while let Some((header, body)) = rest.split_first_chunk::<20>() {
        let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let (payload, next) = body.split_at(number(&header[16..]) as usize);
        messages.push(StoredMessage {
            at: number(&header[..8]),
            time: number(&header[8..16]),
            payload: payload.to_vec(),
        });
        rest = next;
    }
    assert_eq!(messages.last().unwrap().at, fact("position").parse::<u64>().unwrap());
    assert!(messages.iter().all(|message| message.payload[3] == 1), "they are of the first level");
    for group in [1, 7, messages.len()] {
        let folder = tempfile::tempdir().unwrap();
        let mut replica = TestReplica::open(folder.path(), log);
        replica.apply(&messages, group);
        let digest: String = replica.digest().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, fact("sha256"), "in groups of {group}");
        assert!(replica.reader.verify().await.unwrap().is_sound());
        replica.close().await;
    }
}
