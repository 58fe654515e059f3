//! Client of an XMPP server: slixmpp, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::{PASSWORD, SERVICE, XmppServer};

/// slixmpp client process, ended with the test.
pub struct XmppClient {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub jid: String,
}

impl XmppClient {
    pub(super) fn start(server: &XmppServer, jid: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/xmpp_client.py");
        let arguments = json!({ "jid": jid, "password": PASSWORD, "port": server.client_port });
        let mut child = Command::new(crate::common::python())
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
    pub fn wait_until_ready(&mut self, server: &XmppServer) {
        let ready = self.send_command(&json!({ "do": "ready" }));
        assert_eq!(ready["ready"], true, "{}", server.log());
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
