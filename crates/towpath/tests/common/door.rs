//! One address for all nodes, as a load balancer is: each connection goes to the next node that takes it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct Door {
    pub base: String,
    nodes: Arc<Mutex<Vec<SocketAddr>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Door {
    pub fn open(ip: &str) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (nodes, open) =
            (Arc::<Mutex<Vec<SocketAddr>>>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (to, kept) = (nodes.clone(), open.clone());
        std::thread::spawn(move || {
            for (turn, client) in listener.incoming().map_while(Result::ok).enumerate() {
                let (nodes, kept) = (to.lock().unwrap().clone(), kept.clone());
                std::thread::spawn(move || carry_both(client, &nodes, turn, &kept));
            }
        });
        Self { base, nodes, open }
    }

    /// Leads to other nodes from now on; what is open breaks off.
    pub fn lead_to(&self, nodes: Vec<SocketAddr>) {
        *self.nodes.lock().unwrap() = nodes;
        self.slam();
    }

    /// Everything that is open breaks off.
    pub fn slam(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Carries a connection to the first of the nodes, from the one whose turn it is, that takes it.
fn carry_both(client: TcpStream, nodes: &[SocketAddr], turn: usize, kept: &Mutex<Vec<TcpStream>>) {
    let mut tried = (0..nodes.len()).map(|n| &nodes[(turn + n) % nodes.len()]);
    let Some(node) = tried.find_map(|node| TcpStream::connect_timeout(node, Duration::from_millis(500)).ok())
    else {
        return;
    };
    for stream in [&client, &node] {
        let Ok(copy) = stream.try_clone() else { return };
        let mut kept = kept.lock().unwrap();
        // What ended has no peer any more.
        kept.retain(|stream| stream.peer_addr().is_ok());
        kept.push(copy);
    }
    let (Ok(from), Ok(to)) = (client.try_clone(), node.try_clone()) else { return };
    std::thread::spawn(move || carry(from, to));
    carry(node, client);
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
