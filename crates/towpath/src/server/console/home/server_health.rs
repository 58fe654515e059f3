//! Health of the server itself, in sentences.

use super::super::text::{bytes, count};
use super::super::visit::Visit;
use crate::protocols::websub::HubState;
use crate::protocols::websub::pings::PingHealth;
use crate::source::status::{node_problems, replica_problem};

/// Health of the server.
pub(super) struct ServerHealth {
    /// Faults, worst first.
    pub(super) problems: Vec<String>,
    /// Facts for the line above the list.
    pub(super) facts: Vec<String>,
    /// Number of sinks, for those who may see them.
    pub(super) sinks: usize,
}

/// Reads the health of the server. Strangers learn that it fails, and not why.
pub(super) fn read(visit: &Visit, feeds: usize) -> ServerHealth {
    let engine = &visit.engine;
    let mut problems: Vec<String> = match visit.sees_server() {
        true => node_problems(engine)
            .into_iter()
            .chain(HubState::of(engine).problem())
            .chain(PingHealth::of(engine).problem())
            .collect(),
        false => {
            let store = engine.store_failure().map(|_| "The store takes no writes.".to_owned());
            let damage = engine.store_damage().map(|_| "Some stored data is damaged.".to_owned());
            store.into_iter().chain(damage).collect()
        }
    };
    // A problem of the replica names its age, and stands above already.
    let is_told = visit.sees_server() && replica_problem(engine).is_some();
    match engine.replica_age().filter(|_| !is_told) {
        Some(Some(seconds)) => problems.push(format!(
            "This node is {} behind its cluster: what it shows may be old.",
            count(seconds, "second")
        )),
        Some(None) => problems.push("This node does not know how far it is behind its cluster.".to_owned()),
        None => {}
    }
    let mut facts = vec![count(feeds as u64, "feed")];
    if visit.sees_server() {
        let metrics = &engine.metrics;
        let gauge = |value: i64| u64::try_from(value).unwrap_or(0);
        facts.push(count(gauge(metrics.connections.get()), "connection"));
        facts.push(count(gauge(metrics.waiters.get()), "waiting reader"));
        facts.push(count(HubState::of(engine).len() as u64, "WebSub subscriber"));
        if let Some(free) = free_bytes(visit) {
            facts.push(format!("{} free on the disk", bytes(free)));
        }
        if engine.is_shared() {
            facts.push(format!("holds {} of its cluster", count(gauge(metrics.roles.get()), "role")));
        }
    }
    let sinks = if visit.sees_sinks() { engine.sinks.all().len() } else { 0 };
    ServerHealth { problems, facts, sinks }
}

fn free_bytes(visit: &Visit) -> Option<u64> {
    let found = rustix::fs::statvfs(&visit.engine.config.server.data).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}
