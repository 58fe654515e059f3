//! XMPP servers from Debian on loopback, each with a folder and ports of its own; and their clients. They end with the
//! test.

mod client;
mod ejabberd;
mod prosody;

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

pub use client::XmppClient;

use super::{PATIENCE, free_port};

/// The component's name, and the secret that it shares with the server.
pub const SERVICE: &str = "feeds.localhost";
// Characters that XML, TOML, YAML and Lua escape in different ways.
pub const SECRET: &str = "a shared secret <&\"'";
// Not ASCII: SASL sends and hashes it as UTF-8.
pub const PASSWORD: &str = "pässword";
/// Hosts that have accounts.
pub const HOSTS: [&str; 2] = ["one.localhost", "two.localhost"];

/// Software of a server.
#[derive(Clone, Copy, Debug)]
pub enum Software {
    Prosody,
    Ejabberd,
}

/// Makes tests of functions: each is run beside Prosody, and the first list beside ejabberd, which takes longer, too.
macro_rules! beside_xmpp_servers {
    (both: [$($both:ident),* $(,)?], prosody: [$($one:ident),* $(,)?]) => {
        mod beside_prosody {
            $(#[test]
            fn $both() {
                super::$both(super::Software::Prosody);
            })*
            $(#[test]
            fn $one() {
                super::$one(super::Software::Prosody);
            })*
        }
        mod beside_ejabberd {
            $(#[test]
            fn $both() {
                super::$both(super::Software::Ejabberd);
            })*
        }
    };
}
pub(crate) use beside_xmpp_servers;

/// An XMPP server, running or not.
pub struct XmppServer {
    software: Software,
    folder: tempfile::TempDir,
    child: Option<Child>,
    pub client_port: u16,
    pub component_port: u16,
    /// Address at which it listens for the component.
    component_ip: String,
    is_encrypted: bool,
    /// Accounts of each host.
    accounts: Vec<String>,
}

impl XmppServer {
    /// Starts a server with these accounts on each host.
    pub fn start(software: Software, accounts: &[&str]) -> Self {
        Self::start_with(software, accounts, "127.0.0.1", false)
    }

    /// Starts Prosody with these accounts on each host.
    pub fn prosody(accounts: &[&str]) -> Self {
        Self::start(Software::Prosody, accounts)
    }

    /// Starts Prosody for a component that connects from another machine, by this address.
    pub fn prosody_apart(accounts: &[&str], component_ip: &str) -> Self {
        Self::start_with(Software::Prosody, accounts, component_ip, false)
    }

    /// Starts a server that accepts encrypted client connections only. [`Self::authority`] signed its certificate.
    pub fn start_encrypted(software: Software, accounts: &[&str]) -> Self {
        Self::start_with(software, accounts, "127.0.0.1", true)
    }

    fn start_with(software: Software, accounts: &[&str], component_ip: &str, is_encrypted: bool) -> Self {
        let mut server = Self {
            software,
            folder: tempfile::tempdir().unwrap(),
            child: None,
            client_port: free_port(),
            component_port: free_port(),
            component_ip: component_ip.to_owned(),
            is_encrypted,
            accounts: accounts.iter().map(|&account| account.to_owned()).collect(),
        };
        std::fs::create_dir_all(server.path("data")).unwrap();
        if is_encrypted {
            server.certify();
        }
        match software {
            Software::Prosody => prosody::configure(&server),
            Software::Ejabberd => ejabberd::configure(&server),
        }
        server.run();
        server
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Certificate of the authority that signed the server's.
    pub fn authority(&self) -> PathBuf {
        self.path("authority.pem")
    }

    fn certify(&self) {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.not_after = rcgen::date_time_ymd(2099, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertifiedIssuer::self_signed(parameters, key).unwrap();
        std::fs::write(self.authority(), authority.pem()).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(HOSTS.map(str::to_owned)).unwrap();
        // ejabberd takes a certificate with its issuer's name for one that signed itself.
        parameters.distinguished_name.push(rcgen::DnType::CommonName, HOSTS[0]);
        // ejabberd sets timers for the end, which cannot be thousands of years away, as is the default.
        parameters.not_after = rcgen::date_time_ymd(2099, 1, 1);
        let certificate = parameters.signed_by(&key, &authority).unwrap();
        std::fs::write(self.path("server.pem"), certificate.pem()).unwrap();
        std::fs::write(self.path("server.key"), key.serialize_pem()).unwrap();
    }

    /// Starts it again.
    pub fn run(&mut self) {
        let out = std::fs::File::options().create(true).append(true).open(self.path("out")).unwrap();
        let mut command = match self.software {
            Software::Prosody => prosody::command(self),
            Software::Ejabberd => ejabberd::command(self),
        };
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        let software = self.software;
        let child =
            command.spawn().unwrap_or_else(|e| panic!("`cargo xtask setup` installs {software:?}: {e}"));
        self.child = Some(child);
        let end = Instant::now() + PATIENCE;
        let ports = [("127.0.0.1", self.client_port), (self.component_ip.as_str(), self.component_port)];
        for address in ports {
            while TcpStream::connect(address).is_err() {
                assert!(Instant::now() < end, "{software:?} does not listen: {}", self.log());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Stops it cleanly.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        let end = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > end {
                child.kill().unwrap();
                child.wait().unwrap();
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        format!("{}{}", read("out"), read("log"))
    }

    /// The `[xmpp]` configuration of a towpath beside it.
    pub fn component(&self) -> String {
        self.component_with(SERVICE, SECRET)
    }

    pub fn component_with(&self, jid: &str, secret: &str) -> String {
        format!(
            "[xmpp]\nserver = \"{}:{}\"\njid = \"{jid}\"\nsecret = {}\n",
            self.component_ip,
            self.component_port,
            json!(secret)
        )
    }

    /// Client of this account, with an established session.
    pub fn client(&self, account: &str, host: &str, resource: &str) -> XmppClient {
        let mut client = XmppClient::start(self, &format!("{account}@{host}/{resource}"));
        client.wait_until_ready(self);
        client
    }
}

impl Drop for XmppServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
