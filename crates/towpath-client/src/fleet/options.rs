//! Options of a fleet.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use towpath_proto::follow::{FollowMode, ReadLimits, StartFrom};

use crate::clock::{DriverClock, SystemClock};
use crate::protocol::Protocol;

/// Options of a fleet.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FleetOptions {
    /// Protocol of every feed; `None` discovers each feed's strongest.
    pub protocol: Option<Protocol>,
    /// Start position of feeds without state.
    pub from: StartFrom,
    /// [`FollowMode::CatchUp`] polls every feed once and finishes, whatever its SUP document says.
    pub mode: FollowMode,
    /// Poll interval of feeds that no SUP document covers.
    pub every: Duration,
    /// Schedule last saved by [`FleetOutput::save_schedule`](super::FleetOutput::save_schedule).
    pub schedule: Option<Box<RawValue>>,
    /// Limits of what is read from each publisher.
    pub limits: ReadLimits,
    /// Folder for large contents: see [`FollowerOptions`](crate::FollowerOptions). The feeds share it.
    pub large_folder: Option<String>,
    /// Clock of the schedule.
    pub clock: Arc<dyn DriverClock>,
}

impl FleetOptions {
    /// Sets [`protocol`](Self::protocol).
    #[must_use]
    pub fn with_protocol(mut self, protocol: impl Into<Option<Protocol>>) -> Self {
        self.protocol = protocol.into();
        self
    }

    /// Sets [`from`](Self::from).
    #[must_use]
    pub fn with_from(mut self, from: StartFrom) -> Self {
        self.from = from;
        self
    }

    /// Sets [`mode`](Self::mode).
    #[must_use]
    pub fn with_mode(mut self, mode: FollowMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`every`](Self::every).
    #[must_use]
    pub fn with_every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Sets [`schedule`](Self::schedule).
    #[must_use]
    pub fn with_schedule(mut self, schedule: impl Into<Option<Box<RawValue>>>) -> Self {
        self.schedule = schedule.into();
        self
    }

    /// Sets [`limits`](Self::limits).
    #[must_use]
    pub fn with_limits(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets [`large_folder`](Self::large_folder).
    #[must_use]
    pub fn with_large_folder(mut self, large_folder: impl Into<Option<String>>) -> Self {
        self.large_folder = large_folder.into();
        self
    }

    /// Sets [`clock`](Self::clock).
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn DriverClock>) -> Self {
        self.clock = clock;
        self
    }
}

impl Default for FleetOptions {
    /// Follows without end: each feed by its strongest protocol, from its beginning, every 15 minutes.
    fn default() -> Self {
        Self {
            protocol: None,
            from: StartFrom::Beginning,
            mode: FollowMode::Continuous,
            every: Duration::from_secs(900),
            schedule: None,
            limits: ReadLimits::default(),
            large_folder: None,
            clock: Arc::new(SystemClock),
        }
    }
}
