//! Blocks of network addresses that limits count as one host.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

use crate::address::inner_v4;

/// An IPv4 address, or the /64 network of an IPv6 address, which is what one machine or customer has.
///
/// All ports belong to it. An IPv4 address embedded in an IPv6 address counts as the IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressBlock(IpAddr);

impl AddressBlock {
    /// Returns the block of an address.
    pub fn of(address: IpAddr) -> Self {
        let address = match address {
            IpAddr::V4(_) => return Self(address),
            IpAddr::V6(address) => address,
        };
        if let Some(inner) = inner_v4(address) {
            return Self(IpAddr::V4(inner));
        }
        let [a, b, c, d, ..] = address.segments();
        Self(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
    }

    /// Returns the block of a URL whose host is an address; `None` if it is a name.
    pub fn of_url(url: &str) -> Option<Self> {
        let url = url::Url::parse(url).ok()?;
        Some(Self::of(match url.host()? {
            url::Host::Ipv4(address) => IpAddr::V4(address),
            url::Host::Ipv6(address) => IpAddr::V6(address),
            url::Host::Domain(_) => return None,
        }))
    }
}

impl fmt::Display for AddressBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: &str) -> String {
        AddressBlock::of(address.parse().unwrap()).to_string()
    }

    #[test]
    fn addresses_of_one_machine_are_one_block() {
        for (address, expected) in [
            ("203.0.113.9", "203.0.113.9"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
            ("64:ff9b::cb00:7109", "203.0.113.9"),
            ("2002:cb00:7109::1", "203.0.113.9"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
            ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
            ("::1", "::/64"),
        ] {
            assert_eq!(block(address), expected, "{address}");
        }
    }

    #[test]
    fn spellings_and_ports_of_a_url_do_not_matter() {
        let of = |url: &str| AddressBlock::of_url(url).map(|block| block.to_string());
        for url in
            ["http://127.0.0.1:81/a", "https://127.1/", "http://2130706433/", "http://[::ffff:127.0.0.1]/"]
        {
            assert_eq!(of(url).as_deref(), Some("127.0.0.1"), "{url}");
        }
        assert_eq!(of("http://s.example/"), None);
        assert_eq!(of("nonsense"), None);
    }
}
