//! Ports for servers that are stopped and started again.

use std::net::TcpListener;

/// Returns a free port below those that the system gives to `:0` and to outgoing connections. One of these could be
/// taken by another test, or by a client that connects to it in vain, while its own server is stopped.
pub fn free_port() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(32_768);
    let below = if first > 20_000 { 10_000..first } else { 50_000..u16::MAX };
    let mut ports = std::iter::repeat_with(|| fastrand::u16(below.clone()));
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}
