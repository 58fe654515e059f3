//! Servers of an XMPP domain, by its SRV records (RFC 6120, section 3.2.1).

use std::net::IpAddr;
use std::time::Duration;

use domain::base::Name;
use domain::base::name::RelativeName;
use domain::resolv::StubResolver;
use domain::resolv::stub::conf::ResolvConf;
use tokio::time::timeout;

/// Port of servers without SRV records (RFC 6120, section 3.2.2).
const DEFAULT_PORT: u16 = 5222;
/// Time for the records. After that the domain itself is tried, as if it had none.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of servers that are tried.
const MAX_SERVERS: usize = 5;

/// A domain that offers no XMPP.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{domain} offers no XMPP: its SRV record says so")]
pub(super) struct NoXmpp {
    domain: String,
}

/// Returns the servers of a domain as `host:port`, in the order in which to try them.
///
/// # Errors
///
/// [`NoXmpp`] if the domain says that it has none.
pub(super) async fn servers(domain: &str) -> Result<Vec<String>, NoXmpp> {
    // Addresses have no records, and names below `localhost` stay on the machine (RFC 6761, section 6.3).
    let is_local = domain == "localhost" || domain.ends_with(".localhost");
    if is_local || domain.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Ok(vec![fallback(domain)]);
    }
    servers_by(ResolvConf::default(), domain).await
}

fn fallback(domain: &str) -> String {
    format!("{domain}:{DEFAULT_PORT}")
}

/// Does the same with the name servers of `conf`.
async fn servers_by(conf: ResolvConf, domain: &str) -> Result<Vec<String>, NoXmpp> {
    let (Ok(service), Ok(name)) =
        ("_xmpp-client._tcp".parse::<RelativeName<Vec<u8>>>(), domain.parse::<Name<Vec<u8>>>())
    else {
        return Ok(vec![fallback(domain)]);
    };
    let resolver = StubResolver::from_conf(conf);
    let found = timeout(LOOKUP_TIMEOUT, resolver.lookup_srv(service, &name, DEFAULT_PORT)).await;
    match found {
        // A single record for the root means "decidedly not available" (RFC 2782).
        Ok(Ok(None)) => Err(NoXmpp { domain: domain.to_owned() }),
        Ok(Ok(Some(found))) => {
            let server = |host: String, port: u16| format!("{}:{port}", host.trim_end_matches('.'));
            let servers = found.into_srvs().map(|srv| server(srv.target().to_string(), srv.port()));
            Ok(servers.take(MAX_SERVERS).collect())
        }
        // Name servers that fail must not make a server unreachable whose domain has an address.
        Ok(Err(_)) | Err(_) => Ok(vec![fallback(domain)]),
    }
}

#[cfg(test)]
mod tests {
    use domain::base::iana::{Class, Rcode};
    use domain::base::{Message, MessageBuilder, Ttl};
    use domain::rdata::Srv;
    use domain::resolv::stub::conf::{ServerConf, Transport};
    use tokio::net::UdpSocket;

    use super::*;

    /// Starts a name server that answers each question with these records: priority, weight, port and target.
    async fn name_server(records: &'static [(u16, u16, u16, &'static str)]) -> ResolvConf {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut conf = ResolvConf::new();
        conf.servers.push(ServerConf::new(socket.local_addr().unwrap(), Transport::UdpTcp));
        conf.options.timeout = Duration::from_millis(500);
        tokio::spawn(async move {
            let mut buffer = [0; 1500];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                let question = Message::from_octets(&buffer[..length]).unwrap();
                let name = question.sole_question().unwrap().qname().to_string();
                assert_eq!(name, "_xmpp-client._tcp.example.org");
                let mut answer = MessageBuilder::new_vec().start_answer(&question, Rcode::NOERROR).unwrap();
                for (priority, weight, port, target) in records {
                    let target: Name<Vec<u8>> = target.parse().unwrap();
                    let owner: Name<Vec<u8>> = name.parse().unwrap();
                    let record = Srv::new(*priority, *weight, *port, target);
                    answer.push((owner, Class::IN, Ttl::from_secs(60), record)).unwrap();
                }
                socket.send_to(answer.finish().as_slice(), peer).await.unwrap();
            }
        });
        conf
    }

    /// RFC 2782: by priority, whatever the order of the records.
    #[tokio::test]
    async fn records_say_host_and_port() {
        let conf =
            name_server(&[(20, 0, 5222, "backup.example.net."), (10, 5, 15222, "xmpp.example.net.")]).await;
        let servers = servers_by(conf, "example.org").await.unwrap();
        assert_eq!(servers, ["xmpp.example.net:15222", "backup.example.net:5222"]);
    }

    /// RFC 6120, section 3.2.2: the fallback.
    #[tokio::test]
    async fn without_records_the_domain_itself_is_the_server() {
        let conf = name_server(&[]).await;
        assert_eq!(servers_by(conf, "example.org").await.unwrap(), ["example.org:5222"]);
        for local in ["localhost", "one.localhost", "127.0.0.1", "[::1]"] {
            assert_eq!(servers(local).await.unwrap(), [format!("{local}:5222")]);
        }
    }

    /// RFC 6120, section 3.2.1: a target of "." ends the attempt.
    #[tokio::test]
    async fn a_domain_may_say_that_it_has_none() {
        let conf = name_server(&[(0, 0, 0, ".")]).await;
        let error = servers_by(conf, "example.org").await.unwrap_err();
        assert_eq!(error.to_string(), "example.org offers no XMPP: its SRV record says so");
    }

    #[tokio::test]
    async fn a_name_server_that_is_silent_costs_a_while_only() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut conf = ResolvConf::new();
        conf.servers.push(ServerConf::new(socket.local_addr().unwrap(), Transport::UdpTcp));
        conf.options.timeout = Duration::from_millis(50);
        assert_eq!(servers_by(conf, "example.org").await.unwrap(), ["example.org:5222"]);
    }
}
