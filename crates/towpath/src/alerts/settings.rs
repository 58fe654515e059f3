//! `[alerts]` as it is in effect.

use std::sync::Arc;

use tokio::sync::watch;

use super::send::AlertSenders;
use crate::config::{AlertsConfig, Config};

/// `[alerts]` of a running server; `None` while nobody is told. Reading the configuration again replaces it.
pub(crate) type LiveAlerts = watch::Receiver<Option<Arc<AlertSettings>>>;

/// `[alerts]`, with its destinations ready for use.
pub(crate) struct AlertSettings {
    pub(super) config: AlertsConfig,
    pub(super) senders: AlertSenders,
}

impl AlertSettings {
    /// Prepares the alerts of a configuration, if it has any. Messages name the server by its `base_url`.
    ///
    /// # Errors
    ///
    /// The message for a destination that cannot be used.
    pub(crate) fn of(config: &Config, base_url: &str) -> Result<Option<Arc<Self>>, String> {
        let Some(config) = config.alerts.clone() else { return Ok(None) };
        let senders = AlertSenders::new(&config, base_url)?;
        Ok(Some(Arc::new(Self { config, senders })))
    }
}
