//! Alerts: operators are told of what is wrong with sources, feeds, sinks and the node, and when it is over.
//!
//! [`conditions`] decides what is wrong, [`book`] what is told when; both are pure. [`task`] observes, saves and sends.

mod book;
mod conditions;
#[cfg(feature = "email")]
mod email;
mod kind;
mod notice;
mod observe;
mod saved;
mod scope;
mod send;
mod settings;
mod task;

pub(crate) use book::AlertDestination;
pub(crate) use notice::AlertNotice;
pub(crate) use scope::AlertScope;
pub(crate) use send::AlertSenders;
pub(crate) use settings::{AlertSettings, LiveAlerts};
pub(crate) use task::run;
