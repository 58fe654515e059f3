//! Address of a database: the URL of libpq, with the options of the sink taken out.

use std::fmt;
use std::path::PathBuf;

use tokio_postgres::config::{Host, SslMode};
use url::Url;

/// A database, and how to reach it. Its text form has no password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PgAddress {
    pub(super) config: tokio_postgres::Config,
    /// File with the certificates that may sign the server's, beside those of this machine.
    pub(super) root_certificates: Option<PathBuf>,
    shown: String,
}

impl PgAddress {
    /// Parses a URL from which the options of the sink were removed.
    ///
    /// A password that is not in the URL is taken from `password`, so that it need not stand in a command line.
    ///
    /// # Errors
    ///
    /// The error in the URL, without its password.
    pub(super) fn parse(mut url: Url, password: Option<&str>) -> Result<Self, String> {
        let mut root_certificates = None;
        let mut mode = None;
        let options: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        url.set_query(None);
        for (name, value) in options {
            match name.as_str() {
                "sslmode" => mode = Some(ssl_mode(&value)?),
                "sslrootcert" => root_certificates = Some(PathBuf::from(value)),
                _ => drop(url.query_pairs_mut().append_pair(&name, &value)),
            }
        }
        let shown = without_secrets(&url);
        let mut config: tokio_postgres::Config =
            url.as_str().parse().map_err(|e: tokio_postgres::Error| {
                format!("{shown} is no address of a database: {}", reason(&e))
            })?;
        if config.get_hosts().is_empty() {
            return Err(format!(
                "{shown} names no host: write postgres://user@host/database, or ?host=/var/run/postgresql for a socket"
            ));
        }
        if let (None, Some(password)) = (config.get_password(), password) {
            config.password(password);
        }
        config.ssl_mode(mode.unwrap_or_else(|| usual_mode(&config)));
        config.application_name("towpath");
        config.connect_timeout(super::CONNECT_TIMEOUT);
        // A server that vanished is noticed within a minute, also while nothing is written.
        config.keepalives_idle(std::time::Duration::from_secs(30));
        config.tcp_user_timeout(std::time::Duration::from_secs(60));
        Ok(Self { config, root_certificates, shown })
    }
}

impl fmt::Display for PgAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PgAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PgAddress({})", self.shown)
    }
}

/// Returns the URL without password and options.
fn without_secrets(url: &Url) -> String {
    let mut url = url.clone();
    // A URL that cannot have a password has none.
    let _ = url.set_password(None);
    url.set_query(None);
    url.into()
}

/// Encryption without a word about it: none within this machine, else with a verified certificate.
fn usual_mode(config: &tokio_postgres::Config) -> SslMode {
    let is_here = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
    };
    if config.get_hosts().iter().all(is_here) { SslMode::Disable } else { SslMode::Require }
}

fn ssl_mode(value: &str) -> Result<SslMode, String> {
    match value {
        "disable" => Ok(SslMode::Disable),
        "allow" | "prefer" => Ok(SslMode::Prefer),
        // An encrypted connection is always verified: without that, anybody on the way could answer.
        "require" | "verify-ca" | "verify-full" => Ok(SslMode::Require),
        _ => Err(format!("sslmode={value} is none of disable, prefer, require and verify-full")),
    }
}

/// Returns the reason of an error of the driver, which its own text hides in its source.
fn reason(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<PgAddress, String> {
        PgAddress::parse(Url::parse(url).unwrap(), Some("from elsewhere"))
    }

    #[test]
    fn passwords_are_not_shown() {
        let address = parse("postgres://me:hush@db.example:5433/feeds?sslmode=verify-full").unwrap();
        assert_eq!(address.to_string(), "postgres://me@db.example:5433/feeds");
        assert!(!format!("{address:?}").contains("hush"));
        assert_eq!(address.config.get_password(), Some(&b"hush"[..]));
        let without = parse("postgres://me@db.example/feeds").unwrap();
        assert_eq!(without.config.get_password(), Some(&b"from elsewhere"[..]));
        for bad in
            ["postgres://me:hush@db.example/feeds?sslmode=no", "postgres://me:hush@db.example/feeds?x=y"]
        {
            assert!(!parse(bad).unwrap_err().contains("hush"), "{bad}");
        }
    }

    #[test]
    fn other_machines_are_reached_encrypted() {
        let mode = |url: &str| parse(url).unwrap().config.get_ssl_mode();
        assert_eq!(mode("postgres://db.example/feeds"), SslMode::Require);
        assert_eq!(mode("postgres://db.example/feeds?sslmode=disable"), SslMode::Disable);
        assert_eq!(mode("postgres://127.0.0.1/feeds"), SslMode::Disable);
        assert_eq!(mode("postgres:///feeds?host=/run/postgresql"), SslMode::Disable);
        assert!(parse("postgres:///feeds").unwrap_err().contains("names no host"));
    }
}
