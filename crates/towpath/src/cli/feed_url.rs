//! URLs on the command line: of feeds, servers and callbacks.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use url::{Host, Url};

/// Returns true for the URL of an XMPP node.
pub(super) fn is_node(url: &Url) -> bool {
    url.scheme() == "xmpp"
}

/// Parses an http, https or xmpp URL.
pub(super) fn parse_feed(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if is_node(&url) => Ok(url),
        _ => parse_url(text),
    }
}

/// Parses an http or https URL.
pub(super) fn parse_url(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(url),
        Ok(url) => Err(format!("{:?} is neither http nor https", url.scheme())),
        Err(url::ParseError::RelativeUrlWithoutBase) => Err("it must begin with http:// or https://".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// Returns the address to listen on for a callback URL: its own IP address, else its port on all interfaces.
pub(super) fn listen_address(callback: &Url) -> SocketAddr {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let host = match callback.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address),
        Some(Host::Ipv6(address)) => IpAddr::V6(address),
        // A callback on localhost must not open a port to the network.
        Some(Host::Domain("localhost")) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => any,
    };
    SocketAddr::new(host, callback.port_or_known_default().unwrap_or(80))
}
