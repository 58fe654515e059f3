//! Ends and exit codes of `towpath follow`.

use towpath_client::FollowSummary;
use towpath_client::fleet::FleetSummary;
use towpath_client::sink::SinkFailure;
use towpath_proto::follow::{FollowError, FollowMode};

use crate::cli::error::Exit;

/// End of a follow: by itself, or because the sink takes no more.
pub(crate) enum FollowEnd {
    Exit(Exit),
    SinkEnded,
}

impl FollowEnd {
    pub(crate) fn of(summary: Result<FollowSummary, SinkFailure>, mode: FollowMode) -> Self {
        summary.map_or(Self::SinkEnded, |summary| Self::Exit(exit(&summary, mode)))
    }
}

/// Exit code of a follow that was stopped before it caught up. Without `--once` it only ends so, which is success.
pub(super) fn stopped_early(mode: FollowMode) -> Exit {
    match mode {
        FollowMode::Continuous => Exit::Done,
        FollowMode::CatchUp => {
            eprintln!("towpath: stopped before the end");
            Exit::Failed
        }
    }
}

/// Exit code of one feed.
pub(crate) fn exit(summary: &FollowSummary, mode: FollowMode) -> Exit {
    // Without --once a follow only ends by being stopped, so that is success.
    let done = summary.stopped && mode == FollowMode::Continuous;
    match &summary.failed {
        // Usage comes first: a retry cannot succeed, whereas other failures may be temporary.
        Some(FollowError::Usage(_)) if !done => Exit::Usage,
        Some(_) if !done => Exit::Failed,
        _ if summary.stopped && mode == FollowMode::CatchUp => stopped_early(mode),
        _ if summary.incomplete => Exit::Incomplete,
        _ => Exit::Done,
    }
}

/// Exit code of several feeds, by the worst result: usage error, failure, missing items.
pub(super) fn fleet_exit(summary: &FleetSummary, mode: FollowMode) -> Exit {
    if mode == FollowMode::CatchUp && summary.stopped {
        return stopped_early(mode);
    }
    match summary {
        FleetSummary { misused: 1.., .. } if mode == FollowMode::CatchUp => Exit::Usage,
        FleetSummary { failed: 1.., .. } if mode == FollowMode::CatchUp => Exit::Failed,
        FleetSummary { incomplete: 1.., .. } => Exit::Incomplete,
        _ => Exit::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_a_follow() {
        let failed = Some(FollowError::status("http://x/".into(), 500));
        let misused = Some(FollowError::Usage("no".into()));
        let ended = |stopped, failed: &Option<FollowError>, incomplete| {
            let mut summary = FollowSummary::default();
            (summary.stopped, summary.failed, summary.incomplete) = (stopped, failed.clone(), incomplete);
            summary
        };
        for (ended, mode, expected) in [
            (ended(false, &None, false), FollowMode::CatchUp, Exit::Done),
            (ended(false, &None, true), FollowMode::CatchUp, Exit::Incomplete),
            (ended(false, &failed, true), FollowMode::CatchUp, Exit::Failed),
            (ended(false, &misused, false), FollowMode::Continuous, Exit::Usage),
            (ended(true, &None, false), FollowMode::CatchUp, Exit::Failed),
            (ended(true, &None, false), FollowMode::Continuous, Exit::Done),
            // Failures were retried until the follow was stopped; missing items stay missing.
            (ended(true, &failed, false), FollowMode::Continuous, Exit::Done),
            (ended(true, &failed, true), FollowMode::Continuous, Exit::Incomplete),
        ] {
            assert_eq!(exit(&ended, mode), expected, "{ended:?}");
        }
    }
}
