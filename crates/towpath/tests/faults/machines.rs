//! Machines: NATS servers and towpath nodes, each a process that can be killed, stopped, cut off and restarted.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::network::{MachineHost, Network};
use crate::common::free_port;
use crate::common::nats;

/// Number of machines of each kind.
pub const EACH: usize = 3;
/// Kinds of machines, which are their subnets, too.
pub const NODES: u8 = 1;
pub const SERVERS: u8 = 2;
/// Publishers' token.
pub const TOKEN: &str = "secret";

/// A program on a machine.
pub struct Machine {
    pub site: MachineHost,
    pub address: SocketAddr,
    /// Folder of configuration, data and output.
    pub folder: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
    /// Number of kills, by which clients notice that they reached another process.
    pub lives: Arc<AtomicU64>,
}

impl Machine {
    fn new(site: MachineHost, port: u16, folder: PathBuf, program: PathBuf, arguments: &[&str]) -> Self {
        std::fs::create_dir_all(&folder).unwrap();
        let address = format!("{}:{port}", site.ip).parse().unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { site, address, folder, program, arguments, child: None, lives: Arc::default() }
    }

    pub fn start(&mut self) {
        let output = File::options().create(true).append(true).open(self.folder.join("output")).unwrap();
        let mut command = self.site.command(&self.program);
        command.args(&self.arguments).current_dir(&self.folder).env_remove("TOWPATH_TOKEN");
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        self.child = Some(command.spawn().unwrap());
    }

    /// Restarts it if it has exited, as a service manager does.
    pub fn keep_running(&mut self) {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
        if let Some(status) = ended {
            let output = self.output();
            let last = output.lines().last().unwrap_or_default();
            crate::common::nats::say(&format!(
                "{} has ended with {status} ({last}) and is started again",
                self.site.name
            ));
            self.lives.fetch_add(1, Ordering::SeqCst);
            self.start();
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.lives.fetch_add(1, Ordering::SeqCst);
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn signal(&self, signal: &str) {
        let Some(child) = &self.child else { return };
        let status = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// SIGTERM; waits for the exit.
    pub fn stop(&mut self) {
        self.signal("TERM");
        let end = Instant::now() + Duration::from_secs(30);
        while self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none()) {
            assert!(Instant::now() < end, "{} does not stop: {}", self.site.name, self.output());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child = None;
    }

    pub fn output(&self) -> String {
        std::fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    /// Waits until it accepts connections.
    pub fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_err() {
            assert!(Instant::now() < end, "{} does not answer: {}", self.site.name, self.output());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Three servers of one cluster.
pub fn servers(network: &Network, folder: &Path) -> Vec<Machine> {
    let sites: Vec<MachineHost> =
        (0..EACH).map(|n| network.site(format!("server{n}"), SERVERS, n as u8 + 1)).collect();
    let ports: Vec<u16> = sites.iter().map(|_| free_port()).collect();
    let routes: Vec<String> =
        sites.iter().zip(&ports).map(|(site, port)| format!("\"nats-route://{}:{port}\"", site.ip)).collect();
    let server = |(site, route): (MachineHost, &u16)| {
        let (port, folder) = (free_port(), folder.join(&site.name));
        let machine = Machine::new(site, port, folder, nats::program(), &["-c", "server.conf"]);
        let (name, ip) = (&machine.site.name, &machine.site.ip);
        let routes = routes.join(", ");
        let configuration = format!(
            "listen: \"{ip}:{port}\"\nserver_name: {name}\njetstream {{ store_dir: \"data\", max_file: 20GB }}\n\
             cluster {{ name: test, listen: \"{ip}:{route}\", routes: [{routes}], no_advertise: true }}\n"
        );
        std::fs::write(machine.folder.join("server.conf"), configuration).unwrap();
        machine
    };
    sites.into_iter().zip(&ports).map(server).collect()
}

/// Three nodes of one cluster, which readers reach by one address.
pub fn nodes(
    network: &Network,
    folder: &Path,
    servers: &[Machine],
    balancer: &str,
    feeds: &str,
) -> Vec<Machine> {
    let node = |n: usize| {
        let site = network.site(format!("node{n}"), NODES, n as u8 + 1);
        let (port, folder) = (free_port(), folder.join(&site.name));
        // Each node begins with another server, so one fault does not hit all of them alike.
        let hosts: Vec<String> = (0..EACH).map(|s| servers[(n + s) % EACH].address.to_string()).collect();
        let configuration = format!(
            "[server]\nlisten = \"{}:{port}\"\nbase_url = \"{balancer}\"\ncluster = \"nats://{}\"\ntokens = [\"{TOKEN}\"]\n\
             allow_private_callbacks = true\ndata = \"data\"\n{feeds}",
            site.ip,
            hosts.join(","),
        );
        let machine = Machine::new(site, port, folder, env!("CARGO_BIN_EXE_towpath").into(), &["serve"]);
        std::fs::write(machine.folder.join("towpath.toml"), configuration).unwrap();
        machine
    };
    (0..EACH).map(node).collect()
}

/// Deletes a node's replica of the log.
pub fn wipe(node: &Machine) {
    let data = node.folder.join("data");
    if data.exists() {
        std::fs::remove_dir_all(data).unwrap();
    }
}
