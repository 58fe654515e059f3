//! Load balancer: a single address for all nodes; each connection goes to the next node that accepts it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct LoadBalancer {
    pub base: String,
    nodes: Arc<Mutex<Vec<SocketAddr>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl LoadBalancer {
    pub fn open(ip: &str) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (nodes, open) =
            (Arc::<Mutex<Vec<SocketAddr>>>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (to, kept) = (nodes.clone(), open.clone());
        std::thread::spawn(move || {
            for (turn, client) in listener.incoming().map_while(Result::ok).enumerate() {
                let (nodes, kept) = (to.lock().unwrap().clone(), kept.clone());
                std::thread::spawn(move || forward(client, &nodes, turn, &kept));
            }
        });
        Self { base, nodes, open }
    }

    /// Balances over other nodes from now on, and breaks open connections.
    pub fn set_nodes(&self, nodes: Vec<SocketAddr>) {
        *self.nodes.lock().unwrap() = nodes;
        // Keep-alive connections would stay with the former nodes.
        self.disconnect_all();
    }

    /// Breaks all open connections.
    pub fn disconnect_all(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Forwards a connection to the first node that accepts it, beginning with the node whose turn it is.
fn forward(client: TcpStream, nodes: &[SocketAddr], turn: usize, kept: &Mutex<Vec<TcpStream>>) {
    let mut tried = (0..nodes.len()).map(|n| &nodes[(turn + n) % nodes.len()]);
    // A node that is cut off costs half a second, and then the next is tried.
    let Some(node) = tried.find_map(|node| TcpStream::connect_timeout(node, Duration::from_millis(500)).ok())
    else {
        return;
    };
    for stream in [&client, &node] {
        let Ok(copy) = stream.try_clone() else { return };
        let mut kept = kept.lock().unwrap();
        // A closed connection has no peer any more.
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
    // Half-closed: a client that has finished sending still gets its response.
    let _ = to.shutdown(Shutdown::Write);
}
