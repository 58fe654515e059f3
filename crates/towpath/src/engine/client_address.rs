//! Address of the client behind trusted proxies (`X-Forwarded-For`; `Forwarded`, RFC 7239).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};

use crate::config::TrustedProxies;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Most proxies in a row that are believed.
// A client writes the beginning of the list, and could make every request a long walk.
const MAX_HOPS: usize = 16;

/// Returns the address of the client that sent a request.
///
/// That is the peer's address, unless the peer is a trusted proxy. A proxy adds the address that it saw at the list's
/// end, so the list is read from there, as long as trusted proxies wrote it.
pub(crate) fn client_address(peer: SocketAddr, headers: &HeaderMap, proxies: &TrustedProxies) -> IpAddr {
    let peer = peer.ip().to_canonical();
    if !proxies.contains(peer) {
        return peer;
    }
    let by_list = headers
        .contains_key(X_FORWARDED_FOR)
        .then(|| walk(peer, proxies, elements(headers, &X_FORWARDED_FOR).map(address)));
    let by_standard = headers
        .contains_key(FORWARDED)
        .then(|| walk(peer, proxies, elements(headers, &FORWARDED).map(forwarded_for)));
    match (by_list, by_standard) {
        // Most proxies write one of the headers and pass the other on as the client sent it, which is forged then.
        (Some(list), Some(standard)) if list != standard => peer,
        (Some(client), _) | (None, Some(client)) => client,
        (None, None) => peer,
    }
}

/// Returns the network that counts as one client: an IPv4 address, or the /64 of an IPv6 address.
pub(crate) fn client_network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        // A /64 is the smallest network that is given to a customer, who may use all of its addresses.
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

/// Walks from the peer to the first address that no trusted proxy has.
fn walk(peer: IpAddr, proxies: &TrustedProxies, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
    let mut client = peer;
    for hop in hops.take(MAX_HOPS) {
        // An address that cannot be read hides the rest: the last one known counts.
        let Some(hop) = hop else { break };
        client = hop;
        if !proxies.contains(client) {
            break;
        }
    }
    client
}

/// Returns the elements of a list header, the last first.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines: Vec<&str> = headers.get_all(name).iter().map(|line| line.to_str().unwrap_or("?")).collect();
    lines.into_iter().rev().flat_map(|line| line.rsplit(','))
}

/// Parses `for` of a `Forwarded` element. Identifiers such as `unknown` and `_hidden` have no address.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    address(value.trim().trim_matches('"'))
}

/// Parses an address, which may have a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let ip: Option<IpAddr> = bare.parse().ok();
    let ip = ip.or_else(|| text.parse().ok().map(|socket: SocketAddr| socket.ip()))?;
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn client(peer: &str, lines: &[(&'static str, &str)]) -> String {
        let proxies: TrustedProxies = vec!["10.0.0.0/8".to_owned(), "::1".to_owned()].try_into().unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        client_address(SocketAddr::new(peer.parse().unwrap(), 1), &headers, &proxies).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let forged = ("x-forwarded-for", "192.0.2.1");
        assert_eq!(client("203.0.113.9", &[forged]), "203.0.113.9");
        assert_eq!(client("203.0.113.9", &[("forwarded", "for=192.0.2.1")]), "203.0.113.9");
        for peer in ["10.0.0.1", "::ffff:10.0.0.1", "::1"] {
            assert_eq!(client(peer, &[forged]), "192.0.2.1", "{peer}");
        }
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn the_last_address_that_is_no_proxys_is_the_clients() {
        for list in ["198.51.100.1, 192.0.2.1", "x, 192.0.2.1, 10.9.9.9", "192.0.2.1 ,10.1.1.1,10.2.2.2"] {
            assert_eq!(client("10.0.0.1", &[("x-forwarded-for", list)]), "192.0.2.1", "{list}");
        }
        // Several lines are one list (RFC 9110, section 5.3).
        let lines = [("x-forwarded-for", "198.51.100.1"), ("x-forwarded-for", "192.0.2.1, 10.2.2.2")];
        assert_eq!(client("10.0.0.1", &lines), "192.0.2.1");
        // What cannot be read hides the addresses before it.
        assert_eq!(client("10.0.0.1", &[("x-forwarded-for", "192.0.2.1, unknown, 10.3.3.3")]), "10.3.3.3");
        assert_eq!(client("10.0.0.1", &[("x-forwarded-for", "")]), "10.0.0.1");
    }

    #[test]
    fn rfc_7239_4_elements() {
        for (element, expected) in [
            ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
            ("For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=198.51.100.1, by=x;for=192.0.2.43:81", "192.0.2.43"),
            ("for=_hidden", "10.0.0.1"),
            ("proto=http", "10.0.0.1"),
        ] {
            assert_eq!(client("10.0.0.1", &[("forwarded", element)]), expected, "{element}");
        }
    }

    #[test]
    fn a_header_that_the_proxy_did_not_write_does_not_count() {
        let list = ("x-forwarded-for", "192.0.2.1");
        assert_eq!(client("10.0.0.1", &[list, ("forwarded", "for=198.51.100.1")]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &[list, ("forwarded", "for=192.0.2.1")]), "192.0.2.1");
    }

    #[test]
    fn the_walk_is_bounded() {
        let long = vec!["10.1.1.1"; 1000].join(",");
        assert_eq!(client("10.0.0.1", &[("x-forwarded-for", &format!("192.0.2.1,{long}"))]), "10.1.1.1");
    }

    #[test]
    fn networks_of_clients() {
        let network = |ip: &str| client_network(ip.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("192.0.2.1"), "192.0.2.1");
        assert_eq!(network("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
