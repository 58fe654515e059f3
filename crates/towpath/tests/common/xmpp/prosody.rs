//! Debian's Prosody.

use std::process::Command;

use super::{HOSTS, PASSWORD, SECRET, SERVICE, XmppServer};

/// Writes the configuration and the accounts.
pub(super) fn configure(server: &XmppServer) {
    let (data, log, pid) = (server.path("data"), server.path("log"), server.path("pid"));
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
        client = server.client_port,
        component = server.component_port,
        component_ip = server.component_ip,
        encryption = encryption(server),
    );
    std::fs::write(server.path("prosody.cfg.lua"), config).unwrap();
    for host in HOSTS {
        // Prosody's own escape for folder names.
        let folder = data.join(host.replace('.', "%2e")).join("accounts");
        std::fs::create_dir_all(&folder).unwrap();
        for account in &server.accounts {
            let text = format!("return {{ [\"password\"] = \"{PASSWORD}\"; }};\n");
            std::fs::write(folder.join(format!("{account}.dat")), text).unwrap();
        }
    }
}

fn encryption(server: &XmppServer) -> String {
    if !server.is_encrypted {
        return "modules_disabled = { \"s2s\", \"tls\" }\nc2s_require_encryption = false\n\
                allow_unencrypted_plain_auth = true\n"
            .into();
    }
    let (certificate, key) = (server.path("server.pem"), server.path("server.key"));
    format!(
        "modules_disabled = {{ \"s2s\" }}\nc2s_require_encryption = true\n\
         ssl = {{ certificate = {certificate:?}; key = {key:?} }}\n"
    )
}

/// Command that runs it in the foreground.
pub(super) fn command(server: &XmppServer) -> Command {
    let mut command = Command::new("prosody");
    command.args(["-F", "--config"]).arg(server.path("prosody.cfg.lua"));
    command
}
