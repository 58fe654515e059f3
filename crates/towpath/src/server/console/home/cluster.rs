//! The cluster that a node belongs to: its nodes by the roles that they hold, and how far this node is behind.

use std::collections::BTreeMap;

use maud::{Markup, html};
use towpath_store::Table;
use towpath_store::lease::LeaseRow;

use super::super::clock::moment;
use super::super::text::{clip, count, foreign};
use super::super::visit::Visit;
use crate::document::route_error::RouteError;

/// Most leases that are read. A cluster has about twenty, and one for each export and sink.
const MAX_LEASES: usize = 500;

/// The cluster as this node sees it.
pub(super) struct ClusterHealth {
    /// Nodes that hold roles, those with most roles first.
    nodes: Vec<ClusterNode>,
    /// Roles that no node holds.
    free: Vec<String>,
    /// Time at which this node had the whole log; `None` if it does not know.
    current_at: Option<jiff::Timestamp>,
    /// Reason why this node is behind.
    problem: Option<String>,
    is_behind: bool,
}

struct ClusterNode {
    holder: u64,
    roles: Vec<String>,
    is_this: bool,
}

/// Reads the leases of the cluster; `None` for a single server.
pub(super) async fn read(visit: &Visit) -> Result<Option<ClusterHealth>, RouteError> {
    let engine = &visit.engine;
    if !engine.is_shared() || !visit.sees_server() {
        return Ok(None);
    }
    let rows = engine.store.scan(Table::Leases, b"", None, MAX_LEASES).await?;
    let leases = rows.iter().filter_map(|(key, row)| {
        let role = String::from_utf8_lossy(key).into_owned();
        LeaseRow::decode(row).map(|row| (role, row.holder))
    });
    let is_held_here = |role: &str| {
        let held = engine.metrics.held.get(&[("role", role.to_owned())]);
        held.is_some_and(|held| held.get() == 1)
    };
    let (nodes, free) = by_node(leases, is_held_here);
    let status = engine.store.replica_status();
    Ok(Some(ClusterHealth {
        nodes,
        free,
        current_at: status.as_ref().and_then(|status| status.current_at),
        problem: status.and_then(|status| status.problem),
        is_behind: engine.replica_age().is_some(),
    }))
}

/// Sorts the roles by the node that holds them.
fn by_node(
    leases: impl Iterator<Item = (String, u64)>,
    is_held_here: impl Fn(&str) -> bool,
) -> (Vec<ClusterNode>, Vec<String>) {
    let (mut nodes, mut free) = (BTreeMap::<u64, Vec<String>>::new(), Vec::new());
    for (role, holder) in leases {
        match holder {
            0 => free.push(role),
            _ => nodes.entry(holder).or_default().push(role),
        }
    }
    let node = |(holder, roles): (u64, Vec<String>)| {
        let is_this = roles.iter().any(|role| is_held_here(role));
        ClusterNode { holder, roles, is_this }
    };
    let mut nodes: Vec<ClusterNode> = nodes.into_iter().map(node).collect();
    nodes.sort_by_key(|node| (std::cmp::Reverse(node.roles.len()), node.holder));
    (nodes, free)
}

impl ClusterHealth {
    /// Makes the banner: a sentence, and the roles of each node.
    pub(super) fn view(&self) -> Markup {
        let roles = self.nodes.iter().map(|node| node.roles.len() as u64).sum::<u64>();
        html! {
            details class={ "note " (if self.is_behind || !self.free.is_empty() { "late" } else { "ok" }) } {
                summary {
                    strong { "Cluster: " (count(self.nodes.len() as u64, "node")) " with " (count(roles, "lease")) "." } " "
                    @if self.is_behind { "This node is behind." } @else { "This node has the whole log." }
                    @if !self.free.is_empty() { " " (count(self.free.len() as u64, "role")) " without a node." }
                }
                @if self.is_behind { p { "Whole last at " @match self.current_at { Some(at) => (moment(at)), None => "no time since the start" } "." @if let Some(problem) = &self.problem { " " (foreign(&clip(problem, 300))) } } }
                ul { @for node in &self.nodes {
                    li { span class="mono" { (format!("{:08x}", node.holder >> 32)) } @if node.is_this { " (this node)" } ": " (node.roles.join(", ")) }
                } @if !self.free.is_empty() { li { "without a node: " (self.free.join(", ")) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_told_by_node() {
        let leases = [("hub", 7), ("sources/0", 9), ("sources/1", 9), ("upkeep", 0)];
        let leases = leases.into_iter().map(|(role, holder)| (role.to_owned(), holder << 32));
        let (nodes, free) = by_node(leases, |role| role == "hub");
        let told: Vec<(usize, bool)> = nodes.iter().map(|node| (node.roles.len(), node.is_this)).collect();
        assert_eq!((told, free), (vec![(2, false), (1, true)], vec!["upkeep".to_owned()]));
        let health =
            ClusterHealth { nodes, free: Vec::new(), current_at: None, problem: None, is_behind: false };
        let drawn = health.view().into_string();
        assert!(drawn.contains("2 nodes with 3 leases") && drawn.contains("00000007"), "{drawn}");
        assert!(drawn.contains("(this node)") && drawn.contains("note ok"), "{drawn}");
    }
}
