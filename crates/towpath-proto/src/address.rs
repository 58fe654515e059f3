//! Classes of network addresses: public ones, and those of a private network.
//!
//! A hub connects to any address that a subscriber names, and a follower to any that a publisher links to.
//! Without a rule, a stranger could make them send requests to services that only their own machine or network
//! can reach (server-side request forgery). An IPv4 address embedded in an IPv6 address is checked as the IPv4
//! address.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reason why an address is not on the public Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotPublic {
    /// This machine.
    #[error("a loopback address")]
    Loopback,
    /// Unspecified: `0.0.0.0/8`, `::`.
    #[error("no address of a machine")]
    Unspecified,
    /// Private network: RFC 1918, RFC 4193 (unique-local), site-local.
    #[error("an address of a private network")]
    Private,
    /// Link-local (RFC 3927, RFC 4291). Cloud metadata services are here.
    #[error("a link-local address")]
    LinkLocal,
    /// Carrier-grade NAT (RFC 6598).
    #[error("an address of a carrier's own network")]
    Shared,
    /// Multicast or broadcast.
    #[error("a multicast or broadcast address")]
    Multicast,
    /// Reserved for documentation, benchmarks, protocols or the future (RFC 6890).
    #[error("a reserved address")]
    Reserved,
}

/// Checks that an address belongs to the public Internet.
///
/// # Errors
///
/// Returns [`NotPublic`] with the kind of any other address.
pub fn check(address: IpAddr) -> Result<(), NotPublic> {
    let refused = match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => v6(address),
    };
    refused.map_or(Ok(()), Err)
}

/// Network that is opened by naming one of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrivateNetwork {
    /// This machine: `127.0.0.0/8`, `::1`, and the unspecified addresses, which Linux connects to it.
    Loopback,
    /// `10.0.0.0/8`.
    Private10,
    /// `172.16.0.0/12`.
    Private172,
    /// `192.168.0.0/16`.
    Private192,
    /// Carrier-grade NAT, `100.64.0.0/10`, which virtual private networks use too.
    Shared,
    /// Unique-local addresses, `fc00::/7`.
    UniqueLocal,
    /// Single address of any other kind.
    Single(IpAddr),
}

/// Returns the network that naming `address` opens; `None` for a public address, which is open anyway.
pub fn private_network(address: IpAddr) -> Option<PrivateNetwork> {
    let reason = check(address).err()?;
    let address = match address {
        IpAddr::V6(outer) => inner_v4(outer).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    Some(match (reason, address) {
        (NotPublic::Loopback, _) => PrivateNetwork::Loopback,
        (NotPublic::Unspecified, _) if address.is_unspecified() => PrivateNetwork::Loopback,
        (NotPublic::Shared, _) => PrivateNetwork::Shared,
        (NotPublic::Private, IpAddr::V4(address)) => match address.octets()[0] {
            10 => PrivateNetwork::Private10,
            172 => PrivateNetwork::Private172,
            _ => PrivateNetwork::Private192,
        },
        (NotPublic::Private, IpAddr::V6(address)) if address.is_unique_local() => PrivateNetwork::UniqueLocal,
        // Link-local above all: who names a printer must not open the cloud's metadata service.
        _ => PrivateNetwork::Single(address),
    })
}

fn v4(address: Ipv4Addr) -> Option<NotPublic> {
    Some(match address.octets() {
        // Linux connects 0.0.0.0 to the local machine.
        [0, ..] => NotPublic::Unspecified,
        [127, ..] => NotPublic::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => NotPublic::Private,
        [169, 254, ..] => NotPublic::LinkLocal,
        [100, 64..=127, ..] => NotPublic::Shared,
        [224..=239, ..] | [255, 255, 255, 255] => NotPublic::Multicast,
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 18..=19, ..] => NotPublic::Reserved,
        [198, 51, 100, _] | [203, 0, 113, _] | [240..=255, ..] => NotPublic::Reserved,
        _ => return None,
    })
}

fn v6(address: Ipv6Addr) -> Option<NotPublic> {
    // An embedded address leads to the IPv4 host, so ::ffff:127.0.0.1 must not pass as a global address.
    if let Some(inner) = inner_v4(address) {
        return v4(inner);
    }
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => NotPublic::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => NotPublic::Loopback,
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => NotPublic::Private,
        [0xfe80..=0xfebf, ..] => NotPublic::LinkLocal,
        [0xff00..=0xffff, ..] => NotPublic::Multicast,
        // Protocol assignments, Teredo among them, and documentation (RFC 2928, RFC 3849, RFC 9637).
        [0x2001, 0..=0x01ff, ..] | [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => NotPublic::Reserved,
        // Global unicast, as allocated (RFC 4291, section 2.5.4). Everything outside it is refused by
        // default.
        [0x2000..=0x3fff, ..] => return None,
        _ => NotPublic::Reserved,
    })
}

/// Returns the IPv4 address embedded in an IPv6 address: mapped and compatible (RFC 4291, section 2.5.5),
/// translated (RFC 6052) or 6to4 (RFC 3056).
pub(crate) fn inner_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (high, low) = match address.segments() {
        // :: and ::1 are not IPv4-compatible addresses.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => return None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => (high, low),
        [0, 0, 0, 0, 0xffff, 0, high, low] => (high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (high, low),
        [0x2002, high, low, ..] => (high, low),
        _ => return None,
    };
    Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(address: &str) -> Result<(), NotPublic> {
        check(address.parse().unwrap())
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in [
            "8.8.8.8",
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.1.1",
            "2606:4700::1111",
            "2a00:1450:4001::8a",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert_eq!(judged(address), Ok(()), "{address}");
        }
    }

    #[test]
    fn everything_else_is_refused_and_named() {
        use NotPublic::{LinkLocal, Loopback, Multicast, Private, Reserved, Shared, Unspecified};
        for (address, reason) in [
            ("127.0.0.1", Loopback),
            ("127.255.255.254", Loopback),
            ("::1", Loopback),
            ("::ffff:127.0.0.1", Loopback),
            ("::127.0.0.1", Loopback),
            ("64:ff9b::7f00:1", Loopback),
            ("2002:7f00:1::", Loopback),
            ("::ffff:0:127.0.0.1", Loopback),
            ("0.0.0.0", Unspecified),
            ("0.1.2.3", Unspecified),
            ("::", Unspecified),
            ("10.1.2.3", Private),
            ("172.16.0.1", Private),
            ("172.31.255.255", Private),
            ("192.168.0.1", Private),
            ("::ffff:10.0.0.1", Private),
            ("fc00::1", Private),
            ("fdff:ffff::1", Private),
            ("fec0::1", Private),
            ("169.254.169.254", LinkLocal),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("100.64.0.1", Shared),
            ("100.127.255.255", Shared),
            ("224.0.0.1", Multicast),
            ("239.255.255.250", Multicast),
            ("255.255.255.255", Multicast),
            ("ff02::1", Multicast),
            ("240.0.0.1", Reserved),
            ("192.0.0.8", Reserved),
            ("192.0.2.1", Reserved),
            ("198.18.0.1", Reserved),
            ("198.51.100.1", Reserved),
            ("203.0.113.9", Reserved),
            ("2001::1", Reserved),
            ("2001:db8::1", Reserved),
            ("100::1", Reserved),
            ("64:ff9b:1::1", Reserved),
            ("4000::1", Reserved),
            ("5f00::1", Reserved),
        ] {
            assert_eq!(judged(address), Err(reason), "{address}");
        }
    }

    #[test]
    fn a_named_address_opens_its_network_and_no_other() {
        let network = |address: &str| private_network(address.parse().unwrap());
        assert_eq!(network("8.8.8.8"), None);
        for loopback in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"] {
            assert_eq!(network(loopback), Some(PrivateNetwork::Loopback), "{loopback}");
        }
        assert_eq!(network("64:ff9b::a00:1"), network("10.9.9.9"));
        assert_ne!(network("10.0.0.1"), network("172.16.0.1"));
        assert_ne!(network("172.16.0.1"), network("192.168.0.1"));
        assert_eq!(network("fd00::1"), network("fc12::1"));
        assert_ne!(network("169.254.1.1"), network("169.254.169.254"));
    }

    proptest::proptest! {
        #[test]
        fn an_inner_address_is_judged_as_itself(bits: u32) {
            let inner = Ipv4Addr::from(bits);
            let mapped = IpAddr::V6(inner.to_ipv6_mapped());
            proptest::prop_assert_eq!(check(mapped), check(IpAddr::V4(inner)));
        }
    }
}
