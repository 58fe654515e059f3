//! Debian's Prosody on loopback, with its own folder and ports; and its clients. They end with the test.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PATIENCE, free_port};

/// The component's name, and the secret that it shares with the server.
pub const SERVICE: &str = "feeds.localhost";
// Characters that XML, TOML and Lua escape in different ways.
pub const SECRET: &str = "a shared secret <&\"'";
// Not ASCII: SASL sends and hashes it as UTF-8.
pub const PASSWORD: &str = "pässword";
/// Hosts that have accounts.
pub const HOSTS: [&str; 2] = ["one.localhost", "two.localhost"];

/// A Prosody server, running or not.
pub struct Prosody {
    folder: tempfile::TempDir,
    child: Option<Child>,
    pub client_port: u16,
    pub component_port: u16,
    /// Address at which it listens for the component.
    component_ip: String,
    is_encrypted: bool,
}

impl Prosody {
    /// Starts a server with these accounts on each host.
    pub fn start(accounts: &[&str]) -> Self {
        Self::start_with(accounts, "127.0.0.1", false)
    }

    /// Starts a server whose component connects from another machine, by this address.
    pub fn start_apart(accounts: &[&str], component_ip: &str) -> Self {
        Self::start_with(accounts, component_ip, false)
    }

    /// Starts a server that accepts encrypted client connections only. [`Self::authority`] signed its certificate.
    pub fn start_encrypted(accounts: &[&str]) -> Self {
        Self::start_with(accounts, "127.0.0.1", true)
    }

    fn start_with(accounts: &[&str], component_ip: &str, is_encrypted: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (client_port, component_port) = (free_port(), free_port());
        let component_ip = component_ip.to_owned();
        let mut prosody =
            Self { folder, child: None, client_port, component_port, component_ip, is_encrypted };
        if is_encrypted {
            prosody.certify();
        }
        prosody.configure();
        for host in HOSTS {
            // Prosody's own escape for folder names.
            let folder = prosody.path("data").join(host.replace('.', "%2e")).join("accounts");
            std::fs::create_dir_all(&folder).unwrap();
            for account in accounts {
                let text = format!("return {{ [\"password\"] = \"{PASSWORD}\"; }};\n");
                std::fs::write(folder.join(format!("{account}.dat")), text).unwrap();
            }
        }
        prosody.run();
        prosody
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
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertifiedIssuer::self_signed(parameters, key).unwrap();
        std::fs::write(self.authority(), authority.pem()).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let names = HOSTS.map(str::to_owned);
        let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        std::fs::write(self.path("server.pem"), certificate.pem()).unwrap();
        std::fs::write(self.path("server.key"), key.serialize_pem()).unwrap();
    }

    fn encryption(&self) -> String {
        if !self.is_encrypted {
            return "modules_disabled = { \"s2s\", \"tls\" }\nc2s_require_encryption = false\n\
                    allow_unencrypted_plain_auth = true\n"
                .into();
        }
        let (certificate, key) = (self.path("server.pem"), self.path("server.key"));
        format!(
            "modules_disabled = {{ \"s2s\" }}\nc2s_require_encryption = true\n\
             ssl = {{ certificate = {certificate:?}; key = {key:?} }}\n"
        )
    }

    fn configure(&self) {
        let (data, log, pid) = (self.path("data"), self.path("log"), self.path("pid"));
        std::fs::create_dir_all(&data).unwrap();
        let hosts = HOSTS.map(|host| format!("VirtualHost {host:?}\n")).concat();
        let secret = SECRET.replace('"', "\\\"");
        let config = format!(
            r#"
            run_as_root = true
            daemonize = false
            data_path = {data:?}
            pidfile = {pid:?}
            log = {{ info = {log:?} }}
            interfaces = {{ "127.0.0.1" }}
            c2s_ports = {{ {client} }}
            c2s_direct_tls_ports = {{ }}
            s2s_ports = {{ }}
            component_ports = {{ {component} }}
            component_interfaces = {{ "{component_ip}" }}
            modules_enabled = {{ "roster", "saslauth", "tls", "disco", "ping" }}
            {encryption}
            authentication = "internal_plain"
            {hosts}
            Component "{SERVICE}"
                component_conflict_resolve = "kick_old"
                component_secret = "{secret}"
            "#,
            client = self.client_port,
            component = self.component_port,
            component_ip = self.component_ip,
            encryption = self.encryption(),
        );
        std::fs::write(self.path("prosody.cfg.lua"), config).unwrap();
    }

    /// Starts it again.
    pub fn run(&mut self) {
        let out = std::fs::File::options().create(true).append(true).open(self.path("out")).unwrap();
        let child = Command::new("prosody")
            .args(["-F", "--config"])
            .arg(self.path("prosody.cfg.lua"))
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .expect("`cargo xtask setup` installs prosody");
        self.child = Some(child);
        let end = Instant::now() + PATIENCE;
        let ports = [("127.0.0.1", self.client_port), (self.component_ip.as_str(), self.component_port)];
        for address in ports {
            while TcpStream::connect(address).is_err() {
                assert!(Instant::now() < end, "prosody does not listen: {}", self.log());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Stops it cleanly.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
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

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
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

impl Drop for Prosody {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// slixmpp client process, ended with the test.
pub struct XmppClient {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub jid: String,
}

impl XmppClient {
    fn start(prosody: &Prosody, jid: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/xmpp_client.py");
        let arguments = json!({ "jid": jid, "password": PASSWORD, "port": prosody.client_port });
        let mut child = Command::new(super::python())
            .arg(script)
            .arg(arguments.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, commands, answers: BufReader::new(answers), jid: jid.to_owned() }
    }

    /// Waits for its session, which it reconnects by itself.
    pub fn wait_until_ready(&mut self, prosody: &Prosody) {
        let ready = self.send_command(&json!({ "do": "ready" }));
        assert_eq!(ready["ready"], true, "{}", prosody.log());
    }

    /// Sends it a command; returns its reply.
    pub fn send_command(&mut self, command: &Value) -> Value {
        writeln!(self.commands, "{command}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{command}: {e}: {line:?}"))
    }

    /// Sends a command that concerns the component.
    pub fn ask(&mut self, what: &str, mut command: Value) -> Value {
        command["do"] = what.into();
        command["service"] = SERVICE.into();
        self.send_command(&command)
    }

    /// Waits for the next push.
    pub fn pushed(&mut self) -> Value {
        self.send_command(&json!({ "do": "pushed" }))
    }

    /// Returns true if there is no push for a while.
    pub fn is_quiet(&mut self) -> bool {
        self.send_command(&json!({ "do": "pushed", "timeout": 0.5 }))["nothing"] == true
    }
}

impl Drop for XmppClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
