//! Network of a test: a namespace for each machine, joined by a bridge, in which links can be cut.
//!
//! The test runs itself again as the first process of new namespaces of processes, networks and mounts. So the host
//! sees nothing of it, nothing can be left behind, and everything ends with the test. If the system does not allow
//! that, all machines are on loopback and no link can be cut.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Set for the test process inside the namespaces.
const INSIDE: &str = "TOWPATH_TEST_NETWORK";
/// Set if the test must fail without namespaces.
const REQUIRED: &str = "REQUIRE_NAMESPACES";

/// Ends the program with the thread that started it.
const TIED: [&str; 4] = ["setpriv", "--pdeathsig", "KILL", "--"];
const UNSHARE: [&str; 6] = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"];

/// Network that joins the machines.
pub struct Network {
    is_apart: bool,
}

/// Address and namespace of a machine.
#[derive(Debug, Clone)]
pub struct MachineHost {
    pub name: String,
    pub ip: String,
    /// Its namespace.
    namespace: Option<PathBuf>,
}

impl Network {
    /// Returns the network of this test; `None` if the test has run and passed inside a network of its own.
    pub fn enter(test: &str) -> Option<Self> {
        if std::env::var_os(INSIDE).is_some() {
            ip("link set lo up");
            // The namespaces' names are private to this test.
            run("mount -t tmpfs none /run");
            std::fs::create_dir("/run/netns").unwrap();
            ip("link add hub type bridge");
            ip("addr add 10.77.0.1/16 dev hub");
            ip("link set hub up");
            return Some(Self { is_apart: true });
        }
        // Root may not need a user namespace; other users can do nothing without one.
        let users: [&[&str]; 2] = [&[], &["--map-root-user"]];
        let Some(unshare) = users
            .iter()
            .map(|user| [&UNSHARE[..], &["--mount-proc"], user].concat())
            .find(|unshare| works(unshare))
        else {
            assert!(std::env::var_os(REQUIRED).is_none(), "namespaces cannot be made, and {REQUIRED} is set");
            eprintln!("no namespaces can be made here: machines are killed and stopped, and not cut off");
            return Some(Self::loopback());
        };
        let mut inside = Command::new(TIED[0]);
        inside.args(&TIED[1..]).args(unshare).arg(std::env::current_exe().unwrap());
        inside.args(["--exact", test, "--nocapture", "--include-ignored"]).env(INSIDE, "1");
        let output = inside.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        // A filter that matches no test succeeds as well.
        assert!(output.status.success() && said.contains("1 passed"), "it failed in its network");
        None
    }

    /// Network without namespaces, in which no link can be cut.
    pub fn loopback() -> Self {
        Self { is_apart: false }
    }

    /// Returns true if links can be cut.
    pub fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Address of the test's own clients and servers.
    pub fn own_ip(&self) -> &'static str {
        if self.is_apart { "10.77.0.1" } else { "127.0.0.1" }
    }

    /// Adds a machine; each kind has a subnet of its own.
    pub fn site(&self, name: String, kind: u8, number: u8) -> MachineHost {
        if !self.is_apart {
            return MachineHost { name, ip: "127.0.0.1".into(), namespace: None };
        }
        let address = format!("10.77.{kind}.{number}");
        ip(&format!("netns add {name}"));
        ip(&format!("link add v-{name} type veth peer name eth0 netns {name}"));
        ip(&format!("link set v-{name} master hub up"));
        ip(&format!("-n {name} addr add {address}/16 dev eth0"));
        ip(&format!("-n {name} link set eth0 up"));
        ip(&format!("-n {name} link set lo up"));
        let namespace = Some(PathBuf::from(format!("/run/netns/{name}")));
        MachineHost { name, ip: address, namespace }
    }
}

impl MachineHost {
    /// A command on this machine.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(TIED[0]);
        command.args(&TIED[1..]);
        if let Some(namespace) = &self.namespace {
            command.arg("nsenter").arg(format!("--net={}", namespace.display()));
        }
        command.arg(program);
        command
    }

    /// Takes the machine's link down or up.
    pub fn cut(&self, is_cut: bool) {
        ip(&format!("link set v-{} {}", self.name, if is_cut { "down" } else { "up" }));
    }

    /// Drops the machine's packets to others, or stops dropping them: to one, or to all of a kind.
    pub fn lose(&self, others: &str, is_lost: bool) {
        // A blackhole drops packets without an error, as a broken network does.
        let change = if is_lost { "add" } else { "del" };
        ip(&format!("-n {} route {change} blackhole {others}", self.name));
    }
}

/// Subnet of a kind of machines.
pub fn all_of(kind: u8) -> String {
    format!("10.77.{kind}.0/24")
}

fn works(unshare: &[&str]) -> bool {
    let test = "mount -t tmpfs none /run && ip link add hub type bridge && setpriv --pdeathsig KILL -- nsenter --version";
    let mut command = Command::new(unshare[0]);
    command.args(&unshare[1..]).args(["sh", "-c", test]).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn ip(arguments: &str) {
    run(&format!("ip {arguments}"));
}

fn run(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}
