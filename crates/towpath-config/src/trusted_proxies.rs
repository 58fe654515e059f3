//! `[server] trusted_proxies`: networks whose forwarding headers are believed.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;

use super::problems::all_of;

/// Networks of the proxies in front of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>")]
pub struct TrustedProxies(#[schemars(with = "Vec<String>")] Vec<IpNet>);

impl TrustedProxies {
    /// Returns true if no proxy is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the address is one of a trusted proxy.
    pub fn contains(&self, ip: IpAddr) -> bool {
        // Canonical, because a dual-stack socket shows 10.0.0.1 as ::ffff:10.0.0.1.
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }
}

impl TryFrom<Vec<String>> for TrustedProxies {
    type Error = String;

    fn try_from(networks: Vec<String>) -> Result<Self, Self::Error> {
        all_of(networks.iter().map(|text| network(text))).map(Self)
    }
}

fn network(text: &str) -> Result<IpNet, String> {
    let ip = || text.parse().map(|ip: IpAddr| IpNet::from(ip.to_canonical())).ok();
    let network: IpNet = text
        .parse()
        .ok()
        .or_else(ip)
        .ok_or_else(|| format!("{text:?} is not an address or a network, such as 10.0.0.0/8"))?;
    if network.prefix_len() == 0 {
        return Err(format!("{text:?} would let every client choose its own address"));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(networks: &[&str]) -> Result<TrustedProxies, String> {
        TrustedProxies::try_from(networks.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn networks_and_single_addresses() {
        let proxies = parse(&["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]).unwrap();
        for inside in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8::1"] {
            assert!(proxies.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.8", "2001:db9::1", "::1"] {
            assert!(!proxies.contains(outside.parse().unwrap()), "{outside}");
        }
        assert!(parse(&[]).unwrap().is_empty());
    }

    #[test]
    fn invalid_networks_are_named() {
        for bad in ["", "proxy.example", "10.0.0.0/33", "10.0.0.0/", "0.0.0.0/0", "::/0"] {
            let error = parse(&["127.0.0.1", bad]).unwrap_err();
            assert!(error.contains(&format!("{bad:?}")), "{bad}: {error}");
        }
    }
}
