//! Debian's ejabberd. It is run as a program of Erlang: Debian's `ejabberdctl` changes to a user of its own, and its nodes
//! meet at a port of the machine.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use super::{HOSTS, PASSWORD, SECRET, SERVICE, XmppServer};

/// Writes the configuration, as JSON, which is YAML.
pub(super) fn configure(server: &XmppServer) {
    let mut clients = json!({
        "port": server.client_port, "ip": "127.0.0.1", "module": "ejabberd_c2s",
        // As large as Prosody's limit.
        "max_stanza_size": 262_144, "shaper": "none",
    });
    let mut config = json!({
        "loglevel": "info", "hosts": HOSTS, "auth_method": "internal", "auth_password_format": "plain",
        "modules": { "mod_disco": {}, "mod_ping": {}, "mod_roster": {} },
    });
    if server.is_encrypted {
        clients["starttls_required"] = true.into();
        let pem =
            ["server.pem", "server.key"].map(|name| std::fs::read_to_string(server.path(name)).unwrap());
        std::fs::write(server.path("both.pem"), pem.concat()).unwrap();
        config["certfiles"] = json!([server.path("both.pem"), server.authority()]);
    }
    let component = json!({
        "port": server.component_port, "ip": server.component_ip, "module": "ejabberd_service",
        "hosts": { SERVICE: { "password": SECRET } }, "shaper": "none",
    });
    config["listen"] = json!([clients, component]);
    std::fs::write(server.path("ejabberd.yml"), config.to_string()).unwrap();
}

/// Command that runs it in the foreground, and makes the accounts where they are not yet.
pub(super) fn command(server: &XmppServer) -> Command {
    let binary =
        |text: &str| format!("<<{}>>", text.bytes().map(|b| b.to_string()).collect::<Vec<_>>().join(","));
    let accounts = HOSTS.iter().flat_map(|host| server.accounts.iter().map(move |account| (account, host)));
    let accounts: String = accounts
        .map(|(account, host)| {
            format!(
                "ejabberd_auth:try_register({}, {}, {}), ",
                binary(account),
                binary(host),
                binary(PASSWORD)
            )
        })
        .collect();
    let mut command = Command::new("erl");
    command
        // Erlang's schedulers would spin while they wait, and take the cores from other tests.
        .args(["+S", "1", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"])
        .args(["-noinput", "-s", "ejabberd", "-eval", &format!("{accounts}ok.")])
        .args(["-mnesia", "dir", &format!("{:?}", server.path("data"))])
        .arg("-pa")
        .arg(programs())
        .current_dir(server.folder.path())
        .env("EJABBERD_CONFIG_PATH", server.path("ejabberd.yml"))
        .env("EJABBERD_LOG_PATH", server.path("log"))
        .env("SPOOL_DIR", server.path("data"))
        // A crash must not leave a large file in the folder of the tests.
        .env("ERL_CRASH_DUMP_BYTES", "0");
    command
}

/// Folder of its programs, which is named by machine and version.
fn programs() -> PathBuf {
    let list =
        |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ejabberd =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ejabberd-"));
    let all = list("/usr/lib".into()).flat_map(list).find(is_ejabberd);
    all.expect("`cargo xtask setup` installs ejabberd").join("ebin")
}
