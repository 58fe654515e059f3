//! Kinds of events that operators are told of, with the words for them.

use serde::{Deserialize, Serialize};

/// Kind of an event. Events of one kind are told together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AlertKind {
    /// A source fails for some time.
    SourceFailing,
    /// A complete listing lost so many items that it was not believed.
    GuardRefused,
    /// A feed has no changes for longer than it usually has none.
    FeedSilent,
    /// A sink does not deliver what waits.
    SinkBehind,
    /// A static tree is not updated.
    ExportFailing,
    /// Little disk space is free.
    DiskLow,
    /// The server's certificate ends soon.
    CertificateExpiring,
    /// The store takes no writes, or reads met damage.
    StoreFailed,
    /// Documents of a feed cannot be published.
    PublishingFailed,
    /// The replica of this node is behind the log of the cluster.
    ReplicaBehind,
    /// A message by which an operator tests the destinations.
    Test,
}

impl AlertKind {
    /// All kinds of events.
    pub(crate) const ALL: [Self; 10] = [
        Self::SourceFailing,
        Self::GuardRefused,
        Self::FeedSilent,
        Self::SinkBehind,
        Self::ExportFailing,
        Self::DiskLow,
        Self::CertificateExpiring,
        Self::StoreFailed,
        Self::PublishingFailed,
        Self::ReplicaBehind,
    ];

    /// Returns true for a kind that concerns one node of a cluster, and not its feeds or sinks.
    pub(super) fn is_of_node(self) -> bool {
        // Of an export only the node that does it knows.
        matches!(
            self,
            Self::ExportFailing
                | Self::DiskLow
                | Self::CertificateExpiring
                | Self::StoreFailed
                | Self::ReplicaBehind
        )
    }

    /// Name for programs: in messages, tags and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SourceFailing => "source_failing",
            Self::GuardRefused => "guard_refused",
            Self::FeedSilent => "feed_silent",
            Self::SinkBehind => "sink_behind",
            Self::ExportFailing => "export_failing",
            Self::DiskLow => "disk_low",
            Self::CertificateExpiring => "certificate_expiring",
            Self::StoreFailed => "store_failed",
            Self::PublishingFailed => "publishing_failed",
            Self::ReplicaBehind => "replica_behind",
            Self::Test => "test",
        }
    }

    /// Sentence about one subject.
    pub(super) fn one(self, subject: &str) -> String {
        match self {
            Self::SourceFailing => format!("the source of feed {subject} fails"),
            Self::GuardRefused => format!("a listing of feed {subject} lost too many items and was refused"),
            Self::FeedSilent => format!("feed {subject} is silent for longer than usual"),
            Self::SinkBehind => format!("sink {subject} is behind"),
            Self::ExportFailing => format!("the static tree {subject} is not updated"),
            Self::DiskLow => "little disk space is free".into(),
            Self::CertificateExpiring => "the certificate ends soon".into(),
            Self::StoreFailed => "the store failed".into(),
            Self::PublishingFailed => format!("feed {subject} is not published"),
            Self::ReplicaBehind => "the replica is behind the log".into(),
            Self::Test => "this is a test".into(),
        }
    }

    /// Sentence about several subjects.
    pub(super) fn many(self, count: usize) -> String {
        match self {
            Self::SourceFailing => format!("{count} sources fail"),
            Self::GuardRefused => format!("listings of {count} feeds lost too many items and were refused"),
            Self::FeedSilent => format!("{count} feeds are silent for longer than usual"),
            Self::SinkBehind => format!("{count} sinks are behind"),
            Self::ExportFailing => format!("{count} static trees are not updated"),
            Self::PublishingFailed => format!("{count} feeds are not published"),
            other => other.one(""),
        }
    }

    /// Sentence about one or several subjects that are well again.
    pub(super) fn recovered(self, subject: &str, count: usize) -> String {
        match (self, count) {
            (Self::SourceFailing, 1) => format!("the source of feed {subject} works again"),
            (Self::SourceFailing, _) => format!("{count} sources work again"),
            (Self::GuardRefused, 1) => format!("the listing of feed {subject} is taken again"),
            (Self::GuardRefused, _) => format!("listings of {count} feeds are taken again"),
            (Self::FeedSilent, 1) => format!("feed {subject} has changes again"),
            (Self::FeedSilent, _) => format!("{count} feeds have changes again"),
            (Self::SinkBehind, 1) => format!("sink {subject} delivers again"),
            (Self::SinkBehind, _) => format!("{count} sinks deliver again"),
            (Self::ExportFailing, 1) => format!("the static tree {subject} is updated again"),
            (Self::ExportFailing, _) => format!("{count} static trees are updated again"),
            (Self::DiskLow, _) => "enough disk space is free again".into(),
            (Self::CertificateExpiring, _) => "the certificate was renewed".into(),
            (Self::StoreFailed, _) => "the store works again".into(),
            (Self::PublishingFailed, 1) => format!("feed {subject} is published again"),
            (Self::PublishingFailed, _) => format!("{count} feeds are published again"),
            (Self::ReplicaBehind, _) => "the replica is current again".into(),
            (Self::Test, _) => "the test is over".into(),
        }
    }
}
